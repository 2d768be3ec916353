package inside

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

const noSuidDevExec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// early is what the initramfs needs to find the disks.
var early = []mount{
	{"proc", "/proc", "proc", noSuidDevExec, ""},
	{"sysfs", "/sys", "sysfs", noSuidDevExec, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// late is the rest of a host, on the root disk.
var late = []mount{
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", noSuidDevExec, "nsdelegate"},
	{"bpf", "/sys/fs/bpf", "bpf", noSuidDevExec, "mode=0700"},
	{"tracefs", "/sys/kernel/tracing", "tracefs", noSuidDevExec, ""},
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	return nil
}

// settings are the kernel's knobs that a host for many sandboxes needs turned.
var settings = [][2]string{
	{"/proc/sys/fs/nr_open", "1048576"},
	{"/proc/sys/fs/file-max", "4194304"},
	{"/proc/sys/vm/max_map_count", "1048576"},
	{"/proc/sys/net/ipv4/ip_forward", "1"},
	{"/proc/sys/kernel/sysrq", "1"},
	{"/proc/sys/kernel/panic", "-1"},
	{"/proc/sys/kernel/hostname", "lab"},
}

func tune() error {
	for _, s := range settings {
		if err := os.WriteFile(s[0], []byte(s[1]), 0); err != nil {
			return fmt.Errorf("set %s: %w", s[0], err)
		}
	}
	limits := map[int]uint64{unix.RLIMIT_NOFILE: 1 << 20, unix.RLIMIT_MEMLOCK: unix.RLIM_INFINITY, unix.RLIMIT_NPROC: unix.RLIM_INFINITY}
	for resource, limit := range limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", resource, err)
		}
	}
	return delegateControllers("/sys/fs/cgroup")
}

// delegateControllers offers every cgroup controller to the groups below the root.
func delegateControllers(root string) error {
	all, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(all)) {
		if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+"+name), 0); err != nil {
			return fmt.Errorf("enable cgroup controller %s: %w", name, err)
		}
	}
	return nil
}

// addresses are those of QEMU's user networking (its default network), which has no need of DHCP.
const addresses = `link set lo up
addr add 10.0.2.15/24 dev eth0
link set eth0 up
route add default via 10.0.2.2
`

func network() error {
	cmd := exec.Command("/sbin/ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(addresses)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bring the network up: %w: %s", err, out)
	}
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver 10.0.2.3\n"), 0o644)
}
