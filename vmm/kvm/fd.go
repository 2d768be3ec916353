package kvm

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FD owns one file descriptor and closes it once, however often Close is called.
type FD struct {
	// raw is the descriptor plus one, so that the zero FD is closed and does not name standard input.
	raw atomic.Int64
}

// NewFD takes ownership of raw.
func NewFD(raw int) *FD {
	f := new(FD)
	f.raw.Store(int64(raw) + 1)
	return f
}

// Int is the descriptor's number, or -1 once closed: system calls then fail with EBADF instead of reaching
// a descriptor that was given out again.
func (f *FD) Int() int { return int(f.raw.Load()) - 1 }

// Close closes the descriptor; further calls do nothing.
func (f *FD) Close() error {
	raw := f.raw.Swap(0)
	if raw == 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(int(raw)-1))
}
