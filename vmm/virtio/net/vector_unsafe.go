package net

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVector is how many pieces readv and writev take (UIO_MAXIOV).
const maxVector = 1024

// vector is the argument of readv and writev, reused from call to call: unix.Readv makes a new one each time.
type vector struct {
	parts []unix.Iovec
	bytes uint64
}

// reset empties the vector.
func (v *vector) reset() {
	clear(v.parts) // what a chain pointed at is not kept
	v.parts, v.bytes = v.parts[:0], 0
}

// add appends the first bytes of bufs, as many as there are and most allows in all. What would be more than maxVector
// pieces, but for a spare one, is left out.
func (v *vector) add(bufs [][]byte, most uint64) {
	for _, b := range bufs {
		n := min(uint64(len(b)), most-v.bytes)
		if n == 0 {
			continue
		}
		if len(v.parts) == maxVector-1 {
			return
		}
		v.parts = append(v.parts, unix.Iovec{Base: unsafe.SliceData(b), Len: n})
		v.bytes += n
	}
}

// addSpare appends what add left room for.
func (v *vector) addSpare(b []byte) {
	v.parts = append(v.parts, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
	v.bytes += uint64(len(b))
}

// move calls readv or writev. The memory may be a guest's, whose pages may be missing: this is a system call that the
// runtime knows may take long.
func (v *vector) move(call, fd uintptr) (uint64, unix.Errno) {
	for {
		n, _, errno := unix.Syscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v.parts))), uintptr(len(v.parts)))
		if errno != unix.EINTR {
			return uint64(n), errno
		}
	}
}
