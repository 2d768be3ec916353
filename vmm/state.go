package vmm

import (
	"cella.dev/cella/vmm/kvm"
)

// State is a stopped machine without its memory and its disks: all that Restore needs to have another
// machine of the same shape go on. MarshalBinary gives its one encoding.
type State struct {
	MemoryBytes uint64
	CPU         CPUModel
	// TSCKHz is the rate of the guest's time-stamp counter.
	TSCKHz uint32
	// ClockNanos is kvmclock.
	ClockNanos uint64
	VCPUs      []VCPUState
	IOAPIC     []byte
	// Serial is nil for a machine without a console.
	Serial []byte
	// Devices has the state of the virtio devices, in their order.
	Devices [][]byte
}

// CPUModel is what must be the same on the host that restores: state of one CPU model is not state of another.
type CPUModel struct {
	Vendor        [12]byte
	Family, Model uint32
}

// VCPUState is one vCPU.
type VCPUState struct {
	MP        kvm.MPState
	Regs      kvm.Regs
	Sregs     kvm.Sregs
	Events    kvm.VCPUEvents
	DebugRegs kvm.DebugRegs
	XCRs      kvm.XCRs // Count is 0 on a host without XSAVE
	LAPIC     kvm.LAPIC
	XSave     []byte
	MSRs      []kvm.MSREntry
	CPUID     []kvm.CPUIDEntry
}

// cpuModel decodes CPUID leaves 0 and 1 (Intel SDM vol. 2, CPUID; AMD's encoding is the same).
func cpuModel(entries []kvm.CPUIDEntry) CPUModel {
	var c CPUModel
	for _, e := range entries {
		switch e.Function {
		case leafMax:
			for i, r := range []uint32{e.EBX, e.EDX, e.ECX} {
				c.Vendor[4*i], c.Vendor[4*i+1] = byte(r), byte(r>>8)
				c.Vendor[4*i+2], c.Vendor[4*i+3] = byte(r>>16), byte(r>>24)
			}
		case leafFeatures:
			c.Family, c.Model = e.EAX>>8&15, e.EAX>>4&15
			if c.Family == 15 {
				c.Family += e.EAX >> 20 & 0xff
			}
			if c.Family == 6 || c.Family >= 15 {
				c.Model |= e.EAX >> 12 & 0xf0
			}
		}
	}
	return c
}
