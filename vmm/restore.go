package vmm

import (
	"errors"
	"fmt"
	"slices"

	"cella.dev/cella/vmm/kvm"
)

// Restore gives the machine a saved state. RAM is mapped with the content of the same instant, and devices
// are added in the same order as in the machine that was saved. Nothing of a cold boot is done.
func (m *Machine) Restore(s *State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect("restore", phaseNew); err != nil {
		return err
	}
	if err := m.accepts(s); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for i, c := range m.vcpus {
		if err := c.restore(&s.VCPUs[i], s.TSCKHz); err != nil {
			return fmt.Errorf("restore: vCPU %d: %w", i, err)
		}
	}
	// After the TSCs, against which KVM keeps kvmclock. Flags 0: the guest's monotonic time goes on from
	// where it stopped; its wall clock is stepped by the agent.
	if err := m.vm.SetClock(kvm.ClockData{Clock: s.ClockNanos}); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := m.ioapic.Restore(s.IOAPIC); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if s.Serial != nil {
		if err := m.bus.serial.UnmarshalBinary(s.Serial); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	// Devices last: an active one may raise an interrupt, which goes through the IOAPIC to the local APICs.
	for i, d := range m.devices {
		d.transport.Pause()
		if err := d.transport.Restore(s.Devices[i]); err != nil {
			return fmt.Errorf("restore: device %d: %w", i, err)
		}
	}
	m.restored = true
	m.phase = phaseLoaded
	return nil
}

// accepts checks that a state is of a machine like this one, on a host like this one.
func (m *Machine) accepts(s *State) error {
	if have := cpuModel(m.vcpus[0].cpuid); have != s.CPU {
		return stateError("CPU model", "saved on %q family %d model %d, this host is %q family %d model %d: restore it on a host of the same kind",
			s.CPU.Vendor, s.CPU.Family, s.CPU.Model, have.Vendor, have.Family, have.Model)
	}
	if s.MemoryBytes != m.shape.MemoryBytes {
		return stateError("memory", "%d bytes were saved, the machine has %d", s.MemoryBytes, m.shape.MemoryBytes)
	}
	if len(s.VCPUs) != len(m.vcpus) {
		return stateError("vCPUs", "%d were saved, the machine has %d", len(s.VCPUs), len(m.vcpus))
	}
	if len(s.Devices) != len(m.devices) {
		return stateError("devices", "%d were saved, the machine has %d", len(s.Devices), len(m.devices))
	}
	if s.Serial != nil && m.bus.serial == nil {
		return stateError("serial port", "was saved, the machine has none: set a console before restoring")
	}
	return nil
}

// restore sets a vCPU that has never run. Each call costs some microseconds, so what a fresh vCPU has anyway is
// left out. The order matters:
//
//   - CPUID first: it decides which of the other values KVM takes.
//   - Registers before special registers, and both before events: setting registers drops pending exceptions.
//   - Special registers before the local APIC: they hold the APIC's base address and mode.
//   - The local APIC before the MSRs: a TSC deadline written while the timer is in another mode is dropped
//     without an error, and an idle guest never wakes again.
//   - Among the MSRs the TSC first and its deadline last; savedMSRs has them in that order.
//   - Events last, see above.
func (c *vcpu) restore(s *VCPUState, tscKHz uint32) error {
	if err := c.restoreTSCRate(tscKHz); err != nil {
		return err
	}
	if !slices.Equal(c.cpuid, s.CPUID) {
		if err := c.kvm.SetCPUID(s.CPUID); err != nil {
			return err
		}
		c.cpuid = s.CPUID
	}
	if s.MP != freshMP(c.id) {
		if err := c.kvm.SetMPState(s.MP); err != nil {
			return err
		}
	}
	if err := c.kvm.SetRegs(&s.Regs); err != nil {
		return err
	}
	if err := c.kvm.SetSregs(&s.Sregs); err != nil {
		return err
	}
	if err := c.kvm.SetXSave(s.XSave); err != nil {
		return err
	}
	if err := c.kvm.SetXCRs(&s.XCRs); err != nil {
		return err
	}
	if s.DebugRegs != freshDebugRegs {
		if err := c.kvm.SetDebugRegs(&s.DebugRegs); err != nil {
			return err
		}
	}
	if err := c.kvm.SetLAPIC(&s.LAPIC); err != nil {
		return err
	}
	if err := c.restoreMSRs(s.MSRs); err != nil {
		return err
	}
	return c.kvm.SetEvents(&s.Events)
}

// freshMP is the state of a vCPU that was just made: the first one runs, the others wait for an INIT.
func freshMP(id int) kvm.MPState {
	if id == 0 {
		return kvm.MPRunnable
	}
	return kvm.MPUninitialized
}

// freshDebugRegs are the debug registers after a reset (Intel SDM vol. 3 table 10-1).
var freshDebugRegs = kvm.DebugRegs{DR6: 0xffff0ff0, DR7: 0x400}

// maxTSCDriftPPM is how far two hosts' TSC rates may differ before the guest's is scaled: what a clock
// synchronised by NTP corrects anyway.
const maxTSCDriftPPM = 250

func (c *vcpu) restoreTSCRate(khz uint32) error {
	have := c.m.tscKHz
	diff := int64(khz) - int64(have)
	if max(diff, -diff)*1e6 <= maxTSCDriftPPM*int64(khz) {
		return nil
	}
	if err := c.kvm.SetTSCKHz(int(khz)); err != nil {
		return fmt.Errorf("the guest's TSC runs at %d kHz, this host's at %d: %w", khz, have, err)
	}
	c.m.tscKHz = khz
	return nil
}

// farTSC is added to the TSC for a moment, see restoreMSRs.
const farTSC = 1 << 44

// restoreMSRs sets the MSRs. Kernels before 6.7 take a TSC that is written within a second of what it
// would be anyway, counted from the vCPU's creation, for an attempt to synchronise vCPUs, and keep their own
// value: a guest saved in its first seconds would see time jump. Writing a far value first makes the second
// write one that is taken as it is. The other vCPUs are then meant to be synchronised with the first.
func (c *vcpu) restoreMSRs(entries []kvm.MSREntry) error {
	if c.id == 0 && len(entries) > 0 && entries[0].Index == msrTSC {
		far := kvm.MSREntry{Index: msrTSC, Data: entries[0].Data + farTSC}
		entries = append([]kvm.MSREntry{far}, entries...)
	}
	for len(entries) > 0 {
		err := c.kvm.SetMSRs(entries)
		if err == nil {
			return nil
		}
		var rejected *kvm.RejectedMSRError
		if !errors.As(err, &rejected) || !mayReject(rejected.Index) {
			return err
		}
		entries = entries[rejected.Position+1:]
	}
	return nil
}
