package kvm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// VM is one virtual machine: its memory slots, its interrupt controller and its vCPUs.
type VM struct {
	fd  *FD
	sys *System
}

// SetTSSAddr says where in guest-physical memory VMX may put three pages of its own (api.rst §4.35). They
// must not overlap any memory slot or device.
func (v *VM) SetTSSAddr(addr uint64) error {
	_, err := ioctl(v.fd, opSetTSSAddr, uintptr(addr))
	return err
}

// SetIdentityMapAddr says where VMX may put one page for real mode (api.rst §4.42). It must be called
// before the first vCPU exists.
func (v *VM) SetIdentityMapAddr(addr uint64) error {
	_, err := ioctlPtr(v.fd, opSetIdentityMapAddr, &addr)
	return err
}

// EnableSplitIRQChip has KVM emulate the local APICs only, and reserves pins interrupt lines for an IOAPIC
// in user space (api.rst §7.5). It must be called before the first vCPU exists.
func (v *VM) EnableSplitIRQChip(pins int) error {
	c := enableCap{Cap: uint32(CapSplitIRQChip), Args: [4]uint64{uint64(pins)}}
	_, err := ioctlPtr(v.fd, opEnableCap, &c)
	return err
}

// SetMemoryRegion makes host memory guest-physical memory (api.rst §4.35). Each call waits for an SRCU
// grace period, so a VM sets its slots once.
func (v *VM) SetMemoryRegion(r MemoryRegion) error {
	_, err := ioctlPtr(v.fd, opSetUserMemoryRegion, &r)
	return err
}

// SetIOEventFD has guest writes that match e signal an eventfd instead of leaving KVM_RUN (api.rst §4.59).
func (v *VM) SetIOEventFD(e IOEventFD) error {
	_, err := ioctlPtr(v.fd, opIOEventFD, &e)
	return err
}

// SignalMSI delivers one interrupt message to the local APICs (api.rst §4.70). It reports whether a vCPU
// took it; a guest that masked the interrupt does not, which is no error.
func (v *VM) SignalMSI(m MSI) (delivered bool, err error) {
	n, err := ioctlPtr(v.fd, opSignalMSI, &m)
	return n > 0, err
}

// Clock reads kvmclock (api.rst §4.29).
func (v *VM) Clock() (ClockData, error) {
	var c ClockData
	_, err := ioctlPtr(v.fd, opGetClock, &c)
	return c, err
}

// SetClock sets kvmclock. With Flags 0 the guest's monotonic time goes on from c.Clock.
func (v *VM) SetClock(c ClockData) error {
	_, err := ioctlPtr(v.fd, opSetClock, &c)
	return err
}

// CreateVCPU makes a vCPU and maps its kvm_run area.
func (v *VM) CreateVCPU(id int) (*VCPU, error) {
	raw, err := ioctl(v.fd, opCreateVCPU, uintptr(id))
	if err != nil {
		return nil, fmt.Errorf("vCPU %d: %w", id, err)
	}
	fd := NewFD(raw)
	area, err := unix.Mmap(raw, 0, v.sys.RunSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("vCPU %d: map kvm_run: %w", id, err)
	}
	return &VCPU{fd: fd, area: area, xsaveSize: v.sys.XSaveSize, hasXCRs: v.sys.HasXCRs}, nil
}

// Close drops the VM's descriptor. The kernel frees the VM when its vCPUs are closed as well.
func (v *VM) Close() error { return v.fd.Close() }
