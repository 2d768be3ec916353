package virtio

import (
	"fmt"
)

// Populator is a Memory some of whose pages may be missing, as under userfaultfd. A goroutine that touches
// a missing page sleeps in the kernel while it holds a P, which stops the garbage collector and with it
// the whole process. So before this package touches guest memory itself (rings, headers) it calls Populate,
// which must make the range present by a system call and be cheap when it already is. Bulk data needs no
// Populate: devices move it by readv, writev and their like.
type Populator interface {
	Populate(addr uint64, n uint32) error
}

// populate makes [addr, addr+n) safe to touch.
func populate(mem Memory, addr uint64, n uint32) error {
	p, ok := mem.(Populator)
	if !ok || n == 0 {
		return nil
	}
	if err := p.Populate(addr, n); err != nil {
		return fmt.Errorf("populate guest memory [%#x, +%#x): %w", addr, n, err)
	}
	return nil
}

// bytes is Memory.Bytes for memory this package is about to touch.
func bytes(mem Memory, addr uint64, n uint32) ([]byte, error) {
	b, err := mem.Bytes(addr, n)
	if err != nil {
		return nil, err
	}
	if uint64(len(b)) != uint64(n) {
		return nil, fmt.Errorf("guest memory [%#x, +%#x): got %d bytes", addr, n, len(b))
	}
	return b, populate(mem, addr, n)
}
