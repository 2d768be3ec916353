package vmm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and constants of linux/userfaultfd.h.
const (
	uffdAPI          = 0xaa
	uffdioAPI        = 0xc018aa3f
	uffdioRegister   = 0xc020aa00
	uffdRegisterWP   = 1 << 1
	uffdUserModeOnly = 1
)

// Record makes what Touched returns exact. The kernel maps the neighbours of a page of a file with it, unless the range
// is registered for write-protection by userfaultfd; registered is all it ever is here, no page is protected. It is
// called between MapMemory and Start, and for machines that are thrown away: it makes faults dearer.
func (m *Machine) Record() error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|uffdUserModeOnly, 0, 0)
	if errno != 0 {
		return fmt.Errorf("record touched pages: userfaultfd: %w", errno)
	}
	// The descriptor stays open for as long as the process lives: closing it would end the registration.
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI}
	if err := uffdIoctl(fd, uffdioAPI, unsafe.Pointer(&api)); err != nil {
		return fmt.Errorf("record touched pages: UFFDIO_API: %w", err)
	}
	reg := struct{ start, length, mode, ioctls uint64 }{uint64(m.mem.address()), uint64(len(m.mem.ram)), uffdRegisterWP, 0}
	if err := uffdIoctl(fd, uffdioRegister, unsafe.Pointer(&reg)); err != nil {
		return fmt.Errorf("record touched pages: UFFDIO_REGISTER: %w", err)
	}
	return nil
}

func uffdIoctl(fd uintptr, req uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, req, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// address is where RAM lies in this process.
func (m *memory) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.ram))) }
