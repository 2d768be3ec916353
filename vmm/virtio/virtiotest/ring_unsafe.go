package virtiotest

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// tableSize is the room for one indirect table: 64 descriptors.
const tableSize = 64 * 16

// Buffer is a range of guest memory; the device may write to it or read it.
type Buffer struct {
	Addr  uint64
	Len   uint32
	Write bool
}

// Used is one entry of the used ring.
type Used struct {
	Head uint16
	Len  uint32
}

// Ring is the driver's side of a split virtqueue. One goroutine uses it at a time.
type Ring struct {
	// Kicks counts notifications sent.
	Kicks int

	driver            *Driver
	index             int
	size              uint16
	event, indirect   bool
	desc, avail, used uint64
	tables            uint64
	free              []uint16
	chained           [256][]uint16 // descriptors of the chain with this head, other than the head
	availIdx, kicked  uint16
	usedIdx           uint16
}

// Addresses returns where the descriptor table, the available ring and the used ring lie.
func (r *Ring) Addresses() (desc, avail, used uint64) { return r.desc, r.avail, r.used }

// Free is how many chains can still be added.
func (r *Ring) Free() int { return len(r.free) }

func (r *Ring) word(addr uint64) *uint32 {
	return (*uint32)(unsafe.Pointer(&r.driver.Mem.RAM[addr&^3]))
}

func (r *Ring) load16(addr uint64) uint16 {
	return uint16(atomic.LoadUint32(r.word(addr)) >> (8 * (addr & 2)))
}

func (r *Ring) putDescriptor(addr uint64, b Buffer, flags, next uint16) {
	if b.Write {
		flags |= 2
	}
	p := r.driver.Mem.RAM[addr : addr+16]
	binary.LittleEndian.PutUint64(p, b.Addr)
	binary.LittleEndian.PutUint32(p[8:], b.Len)
	binary.LittleEndian.PutUint16(p[12:], flags)
	binary.LittleEndian.PutUint16(p[14:], next)
}

// Add makes a chain of bufs available and returns its head. It doesn't notify.
func (r *Ring) Add(bufs ...Buffer) uint16 {
	head := r.free[0]
	if r.indirect && len(bufs) > 1 {
		table := r.tables + uint64(head)*tableSize
		for i, b := range bufs {
			var flags uint16
			if i < len(bufs)-1 {
				flags = 1
			}
			r.putDescriptor(table+16*uint64(i), b, flags, uint16(i+1))
		}
		r.free = r.free[1:]
		r.putDescriptor(r.desc+16*uint64(head), Buffer{Addr: table, Len: uint32(16 * len(bufs))}, 4, 0)
		r.chained[head] = nil
	} else {
		ids := r.free[:len(bufs)]
		r.free = r.free[len(bufs):]
		for i, b := range bufs {
			var flags, next uint16
			if i < len(bufs)-1 {
				flags, next = 1, ids[i+1]
			}
			r.putDescriptor(r.desc+16*uint64(ids[i]), b, flags, next)
		}
		r.chained[head] = append([]uint16(nil), ids[1:]...)
	}
	r.Publish(head)
	return head
}

// Publish puts a head into the available ring, whatever it points at.
func (r *Ring) Publish(head uint16) {
	slot := r.avail + 4 + 2*uint64(r.availIdx%r.size)
	binary.LittleEndian.PutUint16(r.driver.Mem.RAM[slot:], head)
	r.availIdx++
	r.SetAvailIndex(r.availIdx)
}

// SetAvailIndex overwrites the available index.
func (r *Ring) SetAvailIndex(v uint16) {
	w := r.word(r.avail)
	atomic.StoreUint32(w, atomic.LoadUint32(w)&0xffff|uint32(v)<<16)
}

// Kick notifies the device of what was added if the device asked for it. It reports whether it did.
func (r *Ring) Kick() bool {
	old, now := r.kicked, r.availIdx
	r.kicked = now
	want := old != now
	if r.event {
		event := r.load16(r.used + 4 + 8*uint64(r.size))
		want = want && now-event-1 < now-old
	} else {
		want = want && r.load16(r.used)&1 == 0
	}
	if want {
		r.Kicks++
		r.driver.Write32(0x50, uint32(r.index))
	}
	return want
}

// Take returns the next used chain, if there is one, and frees its descriptors.
func (r *Ring) Take() (Used, bool) {
	if r.load16(r.used+2) == r.usedIdx {
		return Used{}, false
	}
	e := r.driver.Mem.RAM[r.used+4+8*uint64(r.usedIdx%r.size):]
	u := Used{Head: uint16(binary.LittleEndian.Uint32(e)), Len: binary.LittleEndian.Uint32(e[4:])}
	r.usedIdx++
	r.free = append(append(r.free, u.Head), r.chained[u.Head]...)
	return u, true
}

// Arm asks for an interrupt for the next used chain, and reports whether one is there already.
func (r *Ring) Arm() bool {
	if r.event {
		addr := r.avail + 4 + 2*uint64(r.size)
		w, shift := r.word(addr), 8*(addr&2)
		atomic.StoreUint32(w, atomic.LoadUint32(w)&^(0xffff<<shift)|uint32(r.usedIdx)<<shift)
	}
	return r.load16(r.used+2) != r.usedIdx
}
