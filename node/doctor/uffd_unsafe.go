package doctor

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/userfaultfd.h.
const (
	uffdAPIVersion      = 0xaa
	uffdioAPI           = 0xc018aa3f // _IOWR(0xaa, 0x3f, struct uffdio_api)
	uffdioNew           = 0xaa00     // USERFAULTFD_IOC_NEW, _IO(0xaa, 0)
	uffdFeatMissingShmm = 1 << 5     // UFFD_FEATURE_MISSING_SHMEM
)

// uffdAPI is struct uffdio_api: 24 bytes.
type uffdAPI struct{ api, features, ioctls uint64 }

func probeUffd() (uffdFacts, error) {
	fd, via, err := openUffd()
	if err != nil {
		return uffdFacts{}, err
	}
	defer unix.Close(fd)
	req := uffdAPI{api: uffdAPIVersion}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioAPI, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return uffdFacts{}, fmt.Errorf("UFFDIO_API: %w", errno)
	}
	return uffdFacts{via: via, missingShmem: req.features&uffdFeatMissingShmm != 0}, nil
}

// openUffd tries the system call, then the device, which may be given to a user without any capability.
func openUffd() (fd int, via string, err error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	n, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	if errno == 0 {
		return int(n), "the system call", nil
	}
	dev, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0)
	if err != nil {
		return 0, "", fmt.Errorf("userfaultfd: %w (and %v)", errno, err)
	}
	defer dev.Close()
	n, _, errno = unix.Syscall(unix.SYS_IOCTL, dev.Fd(), uffdioNew, flags)
	if errno != 0 {
		return 0, "", fmt.Errorf("USERFAULTFD_IOC_NEW: %w", errno)
	}
	return int(n), "/dev/userfaultfd", nil
}
