package kvm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// VCPU is one virtual CPU. Run must always be called from the same thread: a change of thread costs an RCU
// grace period. The other methods may be called from any thread while Run is not running.
type VCPU struct {
	fd        *FD
	area      []byte
	xsaveSize int
	hasXCRs   bool
}

// Run enters the guest until it needs user space. It returns unix.EINTR, bare, when a signal or
// SetImmediateExit ended it.
func (c *VCPU) Run() error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd.Int()), opRun.nr, 0)
	switch errno {
	case 0:
		return nil
	case unix.EINTR, unix.EAGAIN:
		return unix.EINTR
	default:
		return fmt.Errorf("KVM_RUN: %w", errno)
	}
}

// Regs reads the general registers.
func (c *VCPU) Regs() (r Regs, err error) { _, err = ioctlPtr(c.fd, opGetRegs, &r); return r, err }

// SetRegs sets the general registers. It clears pending exceptions.
func (c *VCPU) SetRegs(r *Regs) error { _, err := ioctlPtr(c.fd, opSetRegs, r); return err }

// Sregs reads segments, control registers and the APIC base.
func (c *VCPU) Sregs() (s Sregs, err error) { _, err = ioctlPtr(c.fd, opGetSregs, &s); return s, err }

// SetSregs sets segments, control registers and the APIC base.
func (c *VCPU) SetSregs(s *Sregs) error { _, err := ioctlPtr(c.fd, opSetSregs, s); return err }

// MPState reads what the vCPU is doing. It lets KVM act on pending INITs first, so it comes before every
// other read of a save.
func (c *VCPU) MPState() (MPState, error) {
	var m MPState
	_, err := ioctlPtr(c.fd, opGetMPState, &m)
	return m, err
}

// SetMPState sets what the vCPU is doing.
func (c *VCPU) SetMPState(m MPState) error { _, err := ioctlPtr(c.fd, opSetMPState, &m); return err }

// Events reads exceptions, interrupts and NMIs on their way to the guest.
func (c *VCPU) Events() (e VCPUEvents, err error) {
	_, err = ioctlPtr(c.fd, opGetVCPUEvents, &e)
	return e, err
}

// SetEvents sets them; Flags says which of the optional ones count.
func (c *VCPU) SetEvents(e *VCPUEvents) error {
	_, err := ioctlPtr(c.fd, opSetVCPUEvents, e)
	return err
}

// DebugRegs reads the debug registers.
func (c *VCPU) DebugRegs() (d DebugRegs, err error) {
	_, err = ioctlPtr(c.fd, opGetDebugRegs, &d)
	return d, err
}

// SetDebugRegs sets the debug registers.
func (c *VCPU) SetDebugRegs(d *DebugRegs) error {
	_, err := ioctlPtr(c.fd, opSetDebugRegs, d)
	return err
}

// XCRs reads the extended control registers. There are none on a host without XSAVE.
func (c *VCPU) XCRs() (x XCRs, err error) {
	if c.hasXCRs {
		_, err = ioctlPtr(c.fd, opGetXCRs, &x)
	}
	return x, err
}

// SetXCRs sets the extended control registers, if there are any.
func (c *VCPU) SetXCRs(x *XCRs) error {
	if x.Count == 0 {
		return nil
	}
	_, err := ioctlPtr(c.fd, opSetXCRs, x)
	return err
}

// LAPIC reads the local APIC's registers.
func (c *VCPU) LAPIC() (l LAPIC, err error) { _, err = ioctlPtr(c.fd, opGetLAPIC, &l); return l, err }

// SetLAPIC sets the local APIC's registers.
func (c *VCPU) SetLAPIC(l *LAPIC) error { _, err := ioctlPtr(c.fd, opSetLAPIC, l); return err }

// XSave reads the FPU and vector state; its length is System.XSaveSize.
func (c *VCPU) XSave() ([]byte, error) {
	b := make([]byte, c.xsaveSize)
	o := opGetXSave
	if len(b) > xsaveSize {
		o = opGetXSave2
	}
	_, err := ioctlPtr(c.fd, o, &b[0])
	return b, err
}

// SetXSave sets the FPU and vector state. b is as long as XSave's result.
func (c *VCPU) SetXSave(b []byte) error {
	if len(b) != c.xsaveSize {
		return fmt.Errorf("KVM_SET_XSAVE: the state has %d bytes, this host's CPU needs %d: restore it on the kind of host that saved it", len(b), c.xsaveSize)
	}
	_, err := ioctlPtr(c.fd, opSetXSave, &b[0])
	return err
}

// CPUID reads what CPUID tells the guest.
func (c *VCPU) CPUID() ([]CPUIDEntry, error) { return getCPUID(c.fd, opGetCPUID2) }

// SetCPUID sets what CPUID tells the guest. It cannot be changed once the guest has run.
func (c *VCPU) SetCPUID(entries []CPUIDEntry) error {
	l := &cpuid2{count: uint32(len(entries))}
	if copy(l.entries[:], entries) < len(entries) {
		return fmt.Errorf("KVM_SET_CPUID2: %d entries, at most %d fit", len(entries), MaxCPUIDEntries)
	}
	_, err := ioctlPtr(c.fd, opSetCPUID2, l)
	return err
}

// GetMSRs fills in the data of entries, whose indices are set, in order. The kernel stops at the first one
// it does not know; the error is then a *RejectedMSRError.
func (c *VCPU) GetMSRs(entries []MSREntry) error { return c.moveMSRs(opGetMSRs, entries) }

// SetMSRs sets MSRs in order. The kernel stops at the first one it rejects; the error is then a
// *RejectedMSRError.
func (c *VCPU) SetMSRs(entries []MSREntry) error { return c.moveMSRs(opSetMSRs, entries) }

func (c *VCPU) moveMSRs(o op, entries []MSREntry) error {
	l := &msrs{count: uint32(len(entries))}
	if copy(l.entries[:], entries) < len(entries) {
		return fmt.Errorf("%s: %d entries, at most %d fit", o.name, len(entries), MaxMSRs)
	}
	n, err := ioctlPtr(c.fd, o, l)
	if err != nil {
		return err
	}
	if n < len(entries) {
		copy(entries[:n], l.entries[:])
		return &RejectedMSRError{Op: o.name, Position: n, Index: entries[n].Index, Value: entries[n].Data}
	}
	copy(entries, l.entries[:])
	return nil
}

// TSCKHz is the rate of the guest's time-stamp counter.
func (c *VCPU) TSCKHz() (int, error) { return ioctl(c.fd, opGetTSCKHz, 0) }

// SetTSCKHz sets the rate of the guest's time-stamp counter; the CPU must be able to scale it.
func (c *VCPU) SetTSCKHz(khz int) error { _, err := ioctl(c.fd, opSetTSCKHz, uintptr(khz)); return err }

// PreFault maps a range of guest-physical memory into the second level of address translation, as reads by the guest
// would, page by page. It needs CapPreFaultMemory (Linux 6.11) and two-dimensional paging (api.rst §4.143).
func (c *VCPU) PreFault(addr, size uint64) error {
	r := PreFault{Addr: addr, Size: size}
	for r.Size > 0 {
		if _, err := ioctlPtr(c.fd, opPreFaultMemory, &r); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return nil
}

// MarkPaused tells the guest's watchdogs, by kvmclock, that the host stopped it (api.rst §4.74). A guest
// that does not use kvmclock has none to tell, which is no error.
func (c *VCPU) MarkPaused() error {
	_, err := ioctl(c.fd, opKVMClockCtrl, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// Close unmaps kvm_run and closes the vCPU.
func (c *VCPU) Close() error {
	err := c.fd.Close()
	if c.area != nil {
		err = errors.Join(err, unix.Munmap(c.area))
		c.area = nil
	}
	return err
}
