package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	newRoot = "/newroot"
	// diskTimeout bounds the wait for the root disk.
	diskTimeout = 10 * time.Second
)

// enterRoot mounts the root disk, gives the initramfs's memory back and makes the disk /.
func enterRoot(opts options) error {
	if err := waitFor(opts.root, diskTimeout); err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if err := unix.Mount(opts.root, newRoot, "ext4", opts.flags, opts.data); err != nil {
		return fmt.Errorf("mount root %s: %w", opts.root, err)
	}
	for _, m := range early {
		target := filepath.Join(newRoot, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("root %s has no %s: %w", opts.root, m.target, err)
		}
		if err := unix.Mount(m.target, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s into root: %w", m.target, err)
		}
	}
	if err := removeInitramfs(); err != nil {
		return err
	}
	return switchRoot()
}

// switchRoot makes newRoot the root of the only mount namespace. pivot_root(2) can't: an initramfs has
// nothing below it to put aside.
func switchRoot() error {
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("switch root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("switch root: move: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("switch root: chroot: %w", err)
	}
	return unix.Chdir("/")
}

// removeInitramfs deletes all files of the file system that / is on; mounts on it are left alone. The
// agent's own pages stay for as long as it runs.
func removeInitramfs() error {
	var st unix.Stat_t
	if err := unix.Lstat("/", &st); err != nil {
		return fmt.Errorf("free initramfs: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return fmt.Errorf("free initramfs: %w", err)
	}
	if fs.Type != unix.RAMFS_MAGIC && fs.Type != unix.TMPFS_MAGIC {
		return errors.New("free initramfs: / is a disk; boot the agent from an initramfs")
	}
	return removeBelow("/", st.Dev)
}

func removeBelow(dir string, dev uint64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("free initramfs: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Dev != dev {
			continue
		}
		if e.IsDir() {
			if err := removeBelow(path, dev); err != nil {
				return err
			}
		}
		os.Remove(path) // what holds a mount stays
	}
	return nil
}

// waitFor returns when the device node exists. The kernel announces devices on a netlink socket
// (NETLINK_KOBJECT_UEVENT); it is opened before the first look, so that no announcement is missed.
func waitFor(device string, timeout time.Duration) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("wait for %s: %w", device, err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return fmt.Errorf("wait for %s: %w", device, err)
	}
	buf := make([]byte, 8<<10)
	for deadline := time.Now().Add(timeout); ; {
		if _, err := os.Stat(device); err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("wait for %s: not there after %s; are virtio_mmio and virtio_blk among the modules?", device, timeout)
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return fmt.Errorf("wait for %s: %w", device, err)
		}
		// Whatever arrives, and also a timeout or an overrun, is answered by looking again.
		unix.Read(fd, buf)
	}
}
