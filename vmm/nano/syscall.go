package nano

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/virtio"
)

// probeTimeout bounds a probe; it takes microseconds where it works.
const probeTimeout = 2 * time.Second

// CannotRunError says that the probe did not come to its end: this KVM cannot run the probe's dozen
// instructions, so it cannot run a kernel.
type CannotRunError struct{ Exit vmm.Exit }

func (e *CannotRunError) Error() string {
	return fmt.Sprintf("this KVM cannot run a system call in a guest (%s): use a host with hardware virtualisation, or the lab", e.Exit)
}

// SyscallCPL makes a system call from user mode in a guest and returns the privilege level at which it
// arrives: 0 on a KVM that can run stock kernels. A level of 3 means that there is no way from a guest's user
// mode into its kernel. A guest that crashes is an answer too: the error is then a *CannotRunError. Other
// errors say that the host has no usable KVM. It takes at most two seconds.
func SyscallCPL(ctx context.Context) (cpl int, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	m, err := vmm.New(vmm.Shape{VCPUs: 1, MemoryBytes: MemoryBytes})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	wrote := make(chan uint32, 1)
	if err := errors.Join(m.MapMemory(-1, true), m.AddDevice(probe{wrote: wrote}), syscallCPL.Load(m), m.Start()); err != nil {
		return 0, fmt.Errorf("probe for system calls: %w", err)
	}
	select {
	case selector := <-wrote:
		return int(selector & 3), nil
	case <-m.Done():
		return 0, &CannotRunError{Exit: m.Exit()}
	case <-ctx.Done():
		return 0, fmt.Errorf("probe for system calls: the guest gave no answer: %w", ctx.Err())
	}
}

// probe is a virtio device whose only use is that a guest can write to its configuration space.
type probe struct {
	wrote chan<- uint32 // the first write; others are dropped
}

func (probe) Type() uint32                  { return 0 } // virtio 1.2 §5: a reserved id, no driver binds
func (probe) Features() uint64              { return 0 }
func (probe) QueueSizes() []uint16          { return nil }
func (probe) ReadConfig(_ uint64, p []byte) { clear(p) }
func (probe) Activate(virtio.Backend) error { return nil }
func (probe) Notify(int)                    {}
func (probe) Reset()                        {}
func (probe) Save() ([]byte, error)         { return nil, nil }
func (probe) Restore([]byte) error          { return nil }

func (d probe) WriteConfig(_ uint64, p []byte) {
	if len(p) != 4 {
		return
	}
	select {
	case d.wrote <- binary.LittleEndian.Uint32(p):
	default:
	}
}
