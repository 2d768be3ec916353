package virtio

import (
	"sync/atomic"
	"unsafe"
)

// Ring indices are 16 bits wide, are written by the other side at any moment, and carry the ordering of the
// rings. Go has no 16-bit atomics, so these functions work on the aligned 32-bit word around the field. Go's
// atomics are sequentially consistent: a store is a full fence (XCHG on x86), which is the StoreLoad
// barrier that EVENT_IDX needs on both sides (virtio 1.2 §2.7.7, §2.7.10).

// word returns the aligned 32-bit word of b that holds the 16-bit field at off, and the field's shift in it.
// b starts at a 4-byte boundary and off is even, so the field never straddles two words.
func word(b []byte, off int) (*uint32, uint) {
	b = b[off&^3:][:4]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b))), uint(off&2) * 8
}

// load16 reads a 16-bit field that the other side writes.
func load16(b []byte, off int) uint16 {
	w, shift := word(b, off)
	return uint16(atomic.LoadUint32(w) >> shift)
}

// store16 writes a 16-bit field without disturbing its neighbour, which may belong to the guest. It is a
// full fence. It reports false if the guest kept changing the neighbour; that is an attack, not a driver.
func store16(b []byte, off int, v uint16) bool {
	w, shift := word(b, off)
	for range 1 << 16 {
		old := atomic.LoadUint32(w)
		if atomic.CompareAndSwapUint32(w, old, old&^(0xffff<<shift)|uint32(v)<<shift) {
			return true
		}
	}
	return false
}

// store32 writes a whole aligned word that this side owns. It is a full fence.
func store32(b []byte, off int, v uint32) {
	w, _ := word(b, off)
	atomic.StoreUint32(w, v)
}
