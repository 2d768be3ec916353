package doctor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Requests and capabilities of include/uapi/linux/kvm.h.
const (
	kvmGetAPIVersion  = 0xae00
	kvmCreateVM       = 0xae01
	kvmCheckExtension = 0xae03
	kvmCreateVCPU     = 0xae41
)

// neededCaps is everything that the VMM uses and can't do without.
var neededCaps = []struct {
	name string
	cap  uintptr
}{
	{"user_memory", 3}, {"mp_state", 14}, {"irq_routing", 25}, {"irqfd", 32}, {"ioeventfd", 36},
	{"adjust_clock", 39}, {"vcpu_events", 41}, {"debugregs", 50}, {"xcrs", 56}, {"tsc_deadline_timer", 72},
	{"signal_msi", 77}, {"split_irqchip", 121}, {"immediate_exit", 136}, {"get_msr_features", 153}, {"xsave2", 208},
}

// ioctl makes a request that takes a plain number and returns one.
func ioctl(fd uintptr, req, arg uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, req, arg)
		if errno == unix.EINTR {
			continue // KVM_CREATE_VM is interrupted by signals on busy hosts
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

func openKVM() (*os.File, error) { return os.OpenFile("/dev/kvm", os.O_RDWR, 0) }

func probeKVM() (kvmFacts, error) {
	dev, err := openKVM()
	if err != nil {
		return kvmFacts{}, err
	}
	defer dev.Close()
	var f kvmFacts
	if f.apiVersion, err = ioctl(dev.Fd(), kvmGetAPIVersion, 0); err != nil {
		return f, fmt.Errorf("KVM_GET_API_VERSION: %w", err)
	}
	for _, c := range neededCaps {
		if n, err := ioctl(dev.Fd(), kvmCheckExtension, c.cap); err != nil || n == 0 {
			f.missing = append(f.missing, c.name)
		}
	}
	return f, nil
}

// probeCreateTime creates a VM and a vCPU and lets go of them.
func probeCreateTime() (createFacts, error) {
	dev, err := openKVM()
	if err != nil {
		return createFacts{}, err
	}
	defer dev.Close()
	start := time.Now()
	vm, err := ioctl(dev.Fd(), kvmCreateVM, 0)
	if err != nil {
		return createFacts{}, fmt.Errorf("KVM_CREATE_VM: %w", err)
	}
	defer unix.Close(vm)
	created := time.Now()
	vcpu, err := ioctl(uintptr(vm), kvmCreateVCPU, 0)
	if err != nil {
		return createFacts{}, fmt.Errorf("KVM_CREATE_VCPU: %w", err)
	}
	defer unix.Close(vcpu)
	return createFacts{vm: created.Sub(start), vcpu: time.Since(created), nxHugePages: readNXHugePages()}, nil
}
