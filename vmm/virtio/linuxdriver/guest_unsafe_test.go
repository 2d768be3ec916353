//go:build e2e

package linuxdriver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// Ports that the guest listens on.
const (
	portEcho = 1024
	// portHash answers, after the client has ended its half, with the SHA-256 of what it sent.
	portHash = 1025
)

func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	if err := guestInit(); err != nil {
		fmt.Println("guest: failed:", err)
	}
	fmt.Println("guest: done")
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// guestInit is what this binary does as the guest's first process.
func guestInit() error {
	for _, m := range [][2]string{{"devtmpfs", "/dev"}, {"sysfs", "/sys"}, {"proc", "/proc"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		if err := loadModule(filepath.Join("/modules", name)); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	switch os.Getenv("CELLA_TASK") {
	case "disk":
		return guestDisk()
	case "entropy":
		return guestEntropy()
	}
	return guestSockets()
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// guestDisk reads, writes, discards and zeroes; the host looks at the file afterwards.
func guestDisk() error {
	serial, err := os.ReadFile("/sys/block/vda/serial")
	if err != nil {
		return err
	}
	fmt.Printf("guest: serial %q\n", serial)
	f, err := os.OpenFile("/dev/vda", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	fmt.Printf("guest: read %d bytes, sha256 %x\n", len(all), sha256.Sum256(all))
	if _, err := f.WriteAt([]byte(strings.Repeat("w", 256<<10)), 256<<10); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	for _, r := range []struct {
		name  string
		req   uintptr
		start uint64
	}{{"discard", unix.BLKDISCARD, 1 << 20}, {"zero", unix.BLKZEROOUT, 2 << 20}} {
		arg := [2]uint64{r.start, 512 << 10}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), r.req, uintptr(unsafe.Pointer(&arg))); errno != 0 {
			return fmt.Errorf("%s: %w", r.name, errno)
		}
	}
	return nil
}

func guestEntropy() error {
	name, err := os.ReadFile("/sys/class/misc/hw_random/rng_current")
	if err != nil {
		return err
	}
	f, err := os.Open("/dev/hwrng")
	if err != nil {
		return err
	}
	defer f.Close()
	var b [4096]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return err
	}
	fmt.Printf("guest: %d bytes from %q, sha256 %x\n", len(b), strings.TrimSpace(string(name)), sha256.Sum256(b[:]))
	return nil
}

func guestSockets() error {
	echo, err := vsock.Listen(portEcho, nil)
	if err != nil {
		return err
	}
	hash, err := vsock.Listen(portHash, nil)
	if err != nil {
		return err
	}
	fmt.Println("guest: listening")
	go serve(hash, func(c net.Conn) error {
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c, "%x", h.Sum(nil))
		return err
	})
	serve(echo, func(c net.Conn) error {
		_, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		return err
	})
	return nil
}

// open is how many connections the guest has.
var open atomic.Int32

func serve(l *vsock.Listener, handle func(net.Conn) error) {
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Println("guest: accept:", err)
			return
		}
		open.Add(1)
		go func() {
			err := handle(c)
			c.Close()
			fmt.Printf("guest: %d open, one ended: %v\n", open.Add(-1), err)
		}()
	}
}
