package vmm

import (
	"errors"
	"fmt"
	"slices"

	"cella.dev/cella/vmm/kvm"
)

// Save reads the state of a paused machine. RAM, at the same instant, is in RAM's regions.
func (m *Machine) Save() (*State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect("save", phasePaused); err != nil {
		return nil, err
	}
	s := &State{MemoryBytes: m.shape.MemoryBytes, CPU: cpuModel(m.vcpus[0].cpuid), VCPUs: make([]VCPUState, len(m.vcpus))}
	for i, c := range m.vcpus {
		if err := c.save(&s.VCPUs[i]); err != nil {
			return nil, fmt.Errorf("save: vCPU %d: %w", i, err)
		}
	}
	clock, err := m.vm.Clock()
	if err != nil {
		return nil, fmt.Errorf("save: %w", err)
	}
	s.TSCKHz, s.ClockNanos = m.tscKHz, clock.Clock
	s.IOAPIC = m.ioapic.Save(nil)
	if m.bus.serial != nil {
		s.Serial = m.bus.serial.AppendBinary(nil)
	}
	for i, d := range m.devices {
		b, err := d.transport.Save()
		if err != nil {
			return nil, fmt.Errorf("save: device %d: %w", i, err)
		}
		s.Devices = append(s.Devices, b)
	}
	return s, nil
}

// save reads a parked vCPU. The order matters: reading the MP state lets KVM act on an INIT or SIPI that is
// under way, which changes everything else, so it comes first; events come last, since the reads before
// them may still change them.
func (c *vcpu) save(s *VCPUState) (err error) {
	if s.MP, err = c.kvm.MPState(); err != nil {
		return err
	}
	if s.Regs, err = c.kvm.Regs(); err != nil {
		return err
	}
	if s.Sregs, err = c.kvm.Sregs(); err != nil {
		return err
	}
	if s.XSave, err = c.kvm.XSave(); err != nil {
		return err
	}
	if s.XCRs, err = c.kvm.XCRs(); err != nil {
		return err
	}
	if s.DebugRegs, err = c.kvm.DebugRegs(); err != nil {
		return err
	}
	if s.LAPIC, err = c.kvm.LAPIC(); err != nil {
		return err
	}
	if s.MSRs, err = c.saveMSRs(); err != nil {
		return err
	}
	// As it was set, not as KVM has it now with what depends on control registers filled in: a pooled machine
	// on the same kind of host has the same already, and need not set it again.
	s.CPUID = c.cpuid
	s.Events, err = c.kvm.Events()
	return err
}

// saveMSRs reads the MSRs, leaving out those that KVM lists but this guest does not have.
func (c *vcpu) saveMSRs() ([]kvm.MSREntry, error) {
	entries := make([]kvm.MSREntry, len(c.m.msrs))
	for i, index := range c.m.msrs {
		entries[i].Index = index
	}
	for from := 0; from < len(entries); {
		err := c.kvm.GetMSRs(entries[from:])
		var rejected *kvm.RejectedMSRError
		if err == nil {
			break
		}
		if !errors.As(err, &rejected) {
			return nil, err
		}
		from += rejected.Position
		entries = slices.Delete(entries, from, from+1)
	}
	return rearmDeadline(entries), nil
}

// rearmDeadline replaces a TSC deadline of 0 by the present TSC. The deadline reads 0 as soon as the timer
// has expired, though its interrupt may not have reached the local APIC's state yet; a guest that is idle
// would then wait for it forever. A timer that fires once too often does no harm.
func rearmDeadline(entries []kvm.MSREntry) []kvm.MSREntry {
	var tsc uint64
	for i := range entries {
		switch e := &entries[i]; e.Index {
		case msrTSC:
			tsc = e.Data
		case msrTSCDeadline:
			if e.Data == 0 {
				e.Data = tsc
			}
		}
	}
	return entries
}
