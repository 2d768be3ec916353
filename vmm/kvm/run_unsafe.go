package kvm

import (
	"sync/atomic"
	"unsafe"
)

// ExitReason says why KVM_RUN came back (linux/kvm.h).
type ExitReason uint32

// The reasons the run loop knows.
const (
	ExitUnknown       ExitReason = 0
	ExitIO            ExitReason = 2
	ExitHLT           ExitReason = 5
	ExitMMIO          ExitReason = 6
	ExitIRQWindowOpen ExitReason = 7
	ExitShutdown      ExitReason = 8
	ExitFailEntry     ExitReason = 9
	ExitIntr          ExitReason = 10
	ExitInternalError ExitReason = 17
	ExitSystemEvent   ExitReason = 24
	ExitIOAPICEOI     ExitReason = 26
)

// Suberrors of ExitInternalError.
const (
	InternalErrorEmulation = 1
)

// runArea mirrors the head of struct kvm_run.
type runArea struct {
	// window is request_interrupt_window, immediate_exit and six padding bytes; the words are read by the
	// kernel when KVM_RUN starts. Another thread sets immediate_exit, hence the atomic access.
	window [2]uint32
	reason uint32
	_      [20]byte
	union  [256]byte
}

// immediateExit is the byte immediate_exit in window[0].
const immediateExit = 1 << 8

func (c *VCPU) run() *runArea { return (*runArea)(unsafe.Pointer(unsafe.SliceData(c.area))) }

// SetImmediateExit has the next or the running KVM_RUN return EINTR before guest code runs, after it has
// completed a pending port or memory access. It may be called from any thread; a vCPU that is in the guest
// needs a signal as well.
func (c *VCPU) SetImmediateExit(on bool) {
	var v uint32
	if on {
		v = immediateExit
	}
	atomic.StoreUint32(&c.run().window[0], v)
}

// Reason says why the last Run came back.
func (c *VCPU) Reason() ExitReason { return ExitReason(c.run().reason) }

// IOExit is a port access that user space must complete before the next Run.
type IOExit struct {
	Port uint16
	// Size is the width of one access in bytes: 1, 2 or 4.
	Size int
	In   bool
	// Data has Count accesses of Size bytes each; for In the caller fills it.
	Data []byte
}

// IO describes an ExitIO.
func (c *VCPU) IO() IOExit {
	u := (*struct {
		direction, size uint8
		port            uint16
		count           uint32
		offset          uint64
	})(unsafe.Pointer(&c.run().union))
	n := uint64(u.size) * uint64(u.count)
	return IOExit{Port: u.port, Size: int(u.size), In: u.direction == 0, Data: c.area[u.offset : u.offset+n]}
}

// MMIOExit is a memory access outside of RAM that user space must complete before the next Run.
type MMIOExit struct {
	Addr  uint64
	Write bool
	// Data has 1 to 8 bytes; for a read the caller fills it.
	Data []byte
}

// MMIO describes an ExitMMIO.
func (c *VCPU) MMIO() MMIOExit {
	u := (*struct {
		addr  uint64
		data  [8]byte
		len   uint32
		write uint8
	})(unsafe.Pointer(&c.run().union))
	return MMIOExit{Addr: u.addr, Write: u.write != 0, Data: u.data[:min(u.len, 8)]}
}

// InternalError describes an ExitInternalError: the suberror and what the kernel adds to it.
func (c *VCPU) InternalError() (suberror uint32, data []uint64) {
	u := (*struct {
		suberror, ndata uint32
		data            [16]uint64
	})(unsafe.Pointer(&c.run().union))
	return u.suberror, append([]uint64(nil), u.data[:min(u.ndata, 16)]...)
}

// FailEntry is the hardware's reason of an ExitFailEntry.
func (c *VCPU) FailEntry() uint64 { return *(*uint64)(unsafe.Pointer(&c.run().union)) }

// SystemEvent is the type of an ExitSystemEvent.
func (c *VCPU) SystemEvent() uint32 { return *(*uint32)(unsafe.Pointer(&c.run().union)) }
