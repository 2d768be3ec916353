package virtio

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Descriptor flags (virtio 1.2 §2.7.5).
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4
	descSize     = 16
)

// Chain is one descriptor chain, resolved to host memory. The guest may change the memory at any time, so
// headers are copied out once with ReadAt and bulk data goes straight to system calls. The zero value is
// ready for Queue.Pop.
type Chain struct {
	// Out is what the device may read, In what it may write, in order. Together they hold at most 4 GiB.
	Out, In [][]byte

	head            uint16
	mem             Memory
	outAddr, inAddr []uint64
	outSize, inSize uint64
}

// OutLen is the number of bytes in Out.
func (c *Chain) OutLen() uint64 { return c.outSize }

// InLen is the number of bytes in In.
func (c *Chain) InLen() uint64 { return c.inSize }

type descriptor struct {
	addr        uint64
	len         uint32
	flags, next uint16
}

// readDescriptor copies a descriptor once; the guest can't change it afterwards.
func readDescriptor(table []byte, i uint16) descriptor {
	var b [descSize]byte
	copy(b[:], table[int(i)*descSize:])
	return descriptor{
		addr:  binary.LittleEndian.Uint64(b[0:]),
		len:   binary.LittleEndian.Uint32(b[8:]),
		flags: binary.LittleEndian.Uint16(b[12:]),
		next:  binary.LittleEndian.Uint16(b[14:]),
	}
}

// walk follows a chain from its head. Every step adds a descriptor or enters the one indirect table that is
// allowed, and there are at most MaxQueueSize descriptors, so a loop ends as an error.
func (c *Chain) walk(q *Queue, head uint16) error {
	*c = Chain{Out: c.Out[:0], In: c.In[:0], outAddr: c.outAddr[:0], inAddr: c.inAddr[:0], head: head, mem: q.mem}
	table, entries, limit, indirect := q.desc, uint32(q.cfg.Size), int(q.cfg.Size), false
	next := head
	for range MaxQueueSize + 1 {
		if uint32(next) >= entries {
			return fmt.Errorf("descriptor %d of %d", next, entries)
		}
		d := readDescriptor(table, next)
		if d.flags&descIndirect != 0 {
			if indirect || d.flags&descNext != 0 {
				return fmt.Errorf("indirect descriptor %d is nested or has a successor", next)
			}
			if d.len == 0 || d.len%descSize != 0 || d.len/descSize > MaxQueueSize {
				return fmt.Errorf("indirect table of %d bytes", d.len)
			}
			var err error
			if table, err = bytes(q.mem, d.addr, d.len); err != nil {
				return fmt.Errorf("indirect table: %w", err)
			}
			entries, limit, indirect, next = d.len/descSize, MaxQueueSize, true, 0
			continue
		}
		if err := c.add(d); err != nil {
			return err
		}
		if d.flags&descNext == 0 {
			return nil
		}
		if len(c.Out)+len(c.In) >= limit {
			break
		}
		next = d.next
	}
	return fmt.Errorf("more than %d descriptors: a loop", limit)
}

// add appends one buffer. Readable buffers come before writable ones (virtio 1.2 §2.7.4.2).
func (c *Chain) add(d descriptor) error {
	write := d.flags&descWrite != 0
	if !write && len(c.In) > 0 {
		return fmt.Errorf("readable buffer after a writable one")
	}
	if c.outSize+c.inSize+uint64(d.len) > math.MaxUint32 {
		return fmt.Errorf("more than 4 GiB of buffers")
	}
	var b []byte
	if d.len > 0 {
		var err error
		if b, err = c.mem.Bytes(d.addr, d.len); err != nil {
			return fmt.Errorf("buffer: %w", err)
		}
	}
	if write {
		c.In, c.inAddr, c.inSize = append(c.In, b), append(c.inAddr, d.addr), c.inSize+uint64(d.len)
	} else {
		c.Out, c.outAddr, c.outSize = append(c.Out, b), append(c.outAddr, d.addr), c.outSize+uint64(d.len)
	}
	return nil
}

// ReadAt copies len(p) bytes at offset off of Out. It fails if there are fewer.
func (c *Chain) ReadAt(p []byte, off uint64) error {
	if off > c.outSize || uint64(len(p)) > c.outSize-off {
		return fmt.Errorf("chain has %d readable bytes, [%d, +%d) was asked for", c.outSize, off, len(p))
	}
	return c.copy(p, c.Out, c.outAddr, off, false)
}

// WriteAt copies p to offset off of In. It fails if there is less room.
func (c *Chain) WriteAt(p []byte, off uint64) error {
	if off > c.inSize || uint64(len(p)) > c.inSize-off {
		return fmt.Errorf("chain has %d writable bytes, [%d, +%d) was asked for", c.inSize, off, len(p))
	}
	return c.copy(p, c.In, c.inAddr, off, true)
}

func (c *Chain) copy(p []byte, bufs [][]byte, addrs []uint64, off uint64, write bool) error {
	for i, b := range bufs {
		if off >= uint64(len(b)) {
			off -= uint64(len(b))
			continue
		}
		b = b[off:min(uint64(len(b)), off+uint64(len(p)))]
		if len(b) == 0 {
			break
		}
		if err := populate(c.mem, addrs[i]+off, uint32(len(b))); err != nil {
			return err
		}
		if write {
			copy(b, p)
		} else {
			copy(p, b)
		}
		p, off = p[len(b):], 0
	}
	return nil
}

// Slice appends to dst the parts of bufs that make up [off, off+n), without copying data.
func Slice(dst, bufs [][]byte, off, n uint64) [][]byte {
	for _, b := range bufs {
		if n == 0 {
			break
		}
		if off >= uint64(len(b)) {
			off -= uint64(len(b))
			continue
		}
		part := b[off:]
		if uint64(len(part)) > n {
			part = part[:n]
		}
		dst, n, off = append(dst, part), n-uint64(len(part)), 0
	}
	return dst
}
