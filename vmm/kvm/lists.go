package kvm

import (
	"fmt"
)

// KVM's variable-length arguments, with room for the most entries the kernel takes or gives here. They are
// fixed-size so that no pointer arithmetic is needed; a call costs one allocation.

// MaxCPUIDEntries is the most CPUID entries a vCPU can have (KVM_MAX_CPUID_ENTRIES).
const MaxCPUIDEntries = 256

type cpuid2 struct {
	count   uint32
	_       uint32
	entries [MaxCPUIDEntries]CPUIDEntry
}

// MaxMSRs is the most MSRs one GetMSRs or SetMSRs call takes (MAX_IO_MSRS).
const MaxMSRs = 256

type msrs struct {
	count   uint32
	_       uint32
	entries [MaxMSRs]MSREntry
}

type msrList struct {
	count   uint32
	indices [1024]uint32
}

func getCPUID(fd *FD, o op) ([]CPUIDEntry, error) {
	c := &cpuid2{count: MaxCPUIDEntries}
	if _, err := ioctlPtr(fd, o, c); err != nil {
		return nil, err
	}
	return c.entries[:c.count:c.count], nil
}

// RejectedMSRError says which MSR of a SetMSRs or GetMSRs call the kernel would not take.
type RejectedMSRError struct {
	Op string
	// Position is the entry's place in the call; the entries before it have been taken.
	Position int
	Index    uint32
	Value    uint64
}

func (e *RejectedMSRError) Error() string {
	return fmt.Sprintf("%s: MSR %#x (value %#x) was rejected: the saved state and this host's CPU or kernel do not match", e.Op, e.Index, e.Value)
}
