package kvm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// apiVersion is the only KVM API version there has been since Linux 2.6.22.
const apiVersion = 12

// System is an open /dev/kvm with what it said about itself.
type System struct {
	fd *FD
	// RunSize is the size of a vCPU's shared kvm_run area in bytes.
	RunSize int
	// XSaveSize is the size of a vCPU's XSAVE area in bytes, 4096 or more.
	XSaveSize int
	// HasXCRs: the host's CPU has XSAVE and with it extended control registers.
	HasXCRs bool
	// MaxVCPUs is the most vCPUs a VM can have here.
	MaxVCPUs int
}

// Open opens /dev/kvm and checks once that it can do all this project needs. Errors say what to do.
func Open() (*System, error) {
	raw, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("open /dev/kvm: %w: load kvm_intel or kvm_amd, or enable virtualisation in the firmware or the outer hypervisor", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("open /dev/kvm: %w: run as root or join the group kvm", err)
	case err != nil:
		return nil, fmt.Errorf("open /dev/kvm: %w", err)
	}
	s := &System{fd: NewFD(raw)}
	if err := s.probe(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *System) probe() error {
	v, err := ioctl(s.fd, opGetAPIVersion, 0)
	if err != nil {
		return err
	}
	if v != apiVersion {
		return fmt.Errorf("KVM API version is %d, want %d", v, apiVersion)
	}
	for _, r := range required {
		n, err := s.Check(r.cap)
		if err != nil {
			return err
		}
		if n == 0 {
			return &MissingCapError{Name: r.name, Since: r.since}
		}
	}
	if s.RunSize, err = ioctl(s.fd, opGetVCPUMmapSize, 0); err != nil {
		return err
	}
	if s.MaxVCPUs, err = s.Check(CapMaxVCPUs); err != nil {
		return err
	}
	n, err := s.Check(CapXCRs)
	if err != nil {
		return err
	}
	s.HasXCRs = n > 0
	n, err = s.Check(CapXSave2)
	if err != nil {
		return err
	}
	s.XSaveSize = max(n, xsaveSize)
	return nil
}

// Check asks for a capability: 0 means absent, other values depend on it (api.rst §4.4).
func (s *System) Check(c Cap) (int, error) { return ioctl(s.fd, opCheckExtension, uintptr(c)) }

// CreateVM makes a virtual machine. It is repeated on EINTR, which a busy host returns now and then when a
// signal arrives while the kernel starts the VM's worker thread.
func (s *System) CreateVM() (*VM, error) {
	for {
		raw, err := ioctl(s.fd, opCreateVM, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &VM{fd: NewFD(raw), sys: s}, nil
	}
}

// SupportedCPUID is what CPUID can be to a guest on this host (api.rst §4.46).
func (s *System) SupportedCPUID() ([]CPUIDEntry, error) {
	return getCPUID(s.fd, opGetSupportedCPUID)
}

// MSRIndices lists the model-specific registers that KVM says should be saved (api.rst §4.3).
func (s *System) MSRIndices() ([]uint32, error) {
	var l msrList
	l.count = uint32(len(l.indices))
	if _, err := ioctlPtr(s.fd, opGetMSRIndexList, &l); err != nil {
		return nil, err
	}
	return append([]uint32(nil), l.indices[:l.count]...), nil
}

// Close closes /dev/kvm. Virtual machines made from it live on.
func (s *System) Close() error { return s.fd.Close() }
