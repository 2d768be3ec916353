// Package boot brings a guest from its initramfs to a running system, as PID 1.
//
// The initramfs holds the agent as /init, the kernel modules under /modules with their load order, one
// file name a line, in /modules/order, and the nodes /dev/console and /dev/null (Go's runtime opens the
// latter before main where the kernel has no console).
//
//	modules → root disk appears → mount it → free the initramfs → move into the root → mounts, limits, network
package boot

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run does all of it. After an error the guest can't be used.
func Run(log *slog.Logger) error {
	if err := mountAll(early); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("read kernel command line: %w", err)
	}
	opts := parseCmdline(string(line))
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := enterRoot(opts); err != nil {
		return err
	}
	if err := mountAll(late); err != nil {
		return err
	}
	if err := linkDevices(); err != nil {
		return err
	}
	tune(log)
	if err := unix.Sethostname([]byte(opts.hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	if err := setUp("lo"); err != nil {
		return err
	}
	return connect(opts.net)
}

// A mountPoint is one file system that every Linux system expects.
type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

// early is needed to find the root; it is moved there afterwards.
var early = []mountPoint{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// late is mounted in the root. /tmp stays what the image has. gid 5 is Debian's group tty.
var late = []mountPoint{
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
}

// mountAll mounts what isn't mounted yet.
func mountAll(points []mountPoint) error {
	for _, m := range points {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
		err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

// linkDevices makes the names that devtmpfs lacks; bash's <(…) needs /dev/fd.
func linkDevices() error {
	links := map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	}
	for name, target := range links {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link devices: %w", err)
		}
	}
	return nil
}

// sysctls are the defaults of a developer's machine where the kernel's are those of a small server.
var sysctls = map[string]string{
	"fs/inotify/max_user_watches":   "524288",
	"fs/inotify/max_user_instances": "1024",
	"net/ipv4/ping_group_range":     "0 2147483647",
	"vm/max_map_count":              "262144",
}

// tune sets limits. None is worth failing a boot for.
func tune(log *slog.Logger) {
	for name, value := range sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			log.Warn("sysctl not set", "name", name, "err", err)
		}
	}
	// Set explicitly, the limit is what children get too, where Go would give them what it started with.
	files := syscall.Rlimit{Cur: 65536, Max: 1 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		log.Warn("file limit not set", "err", err)
	}
	// The kernel never picks PID 1 in an out-of-memory kill, whatever its score. So the score can be that of
	// user processes, and they inherit it without a write for each.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("100"), 0o644); err != nil {
		log.Warn("oom score not set", "err", err)
	}
}
