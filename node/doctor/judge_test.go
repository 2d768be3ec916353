package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/nano"
)

func TestJudges(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: unix.EACCES}
	absent := &fs.PathError{Op: "open", Path: "/dev/kvm", Err: unix.ENOENT}
	tests := []struct {
		name      string
		got       Check
		status    Status
		found, do string
	}{
		{"kvm is whole", judgeKVM(kvmFacts{maxVCPUs: 288}, nil), OK, "has every capability that is needed, up to 288 vCPUs a VM", ""},
		{"kvm is absent", judgeKVM(kvmFacts{}, absent), Fail, "/dev/kvm does not exist",
			"enable VT-x or AMD-V in the firmware (or nested virtualization in the hypervisor), then `modprobe kvm_intel` or `modprobe kvm_amd`; without either, `cella lab` emulates such a host"},
		{"kvm is denied", judgeKVM(kvmFacts{}, denied), Fail, "/dev/kvm: permission denied", "run as root or add the user to the group `kvm`"},
		{"kvm fails", judgeKVM(kvmFacts{}, errors.New("odd")), Fail, "odd", "look at dmesg for kvm"},
		{"kvm lacks a capability", judgeKVM(kvmFacts{missing: "KVM_CAP_SPLIT_IRQCHIP", since: "4.4"}, nil), Fail,
			"KVM without KVM_CAP_SPLIT_IRQCHIP", "use Linux 4.4 or later as this machine's kernel"},

		{"syscall enters the kernel", judgeStock(0, nil), OK, "SYSCALL in a guest enters its kernel (CPL 0)", ""},
		{"syscall stays in user mode", judgeStock(3, nil), Fail, "SYSCALL in a guest arrives at CPL 3 instead of 0",
			"use `cella lab`: it emulates a standard KVM host in which everything runs"},
		{"syscall kills the guest", judgeStock(0, fmt.Errorf("probe: %w", &nano.CannotRunError{})), Fail,
			fmt.Sprintf("a guest that makes a system call dies (%v)", vmm.Exit{}), "use `cella lab`: it emulates a standard KVM host in which everything runs"},
		{"semantics unknown", judgeStock(0, errNoProbe), Fail, "could not be tried: this build has no nano guest to try it with",
			"fix the line `kvm` first; or use `cella lab`: it emulates a standard KVM host in which everything runs"},

		{"creates fast", judgeCreateTime(createFacts{vm: 350 * time.Microsecond, vcpu: 137 * time.Microsecond, nxHugePages: "never"}, nil), OK,
			"first KVM_CREATE_VM 0.35 ms, first KVM_CREATE_VCPU 0.14 ms, nx_huge_pages=never", ""},
		{"creates slowly", judgeCreateTime(createFacts{vm: 27 * time.Millisecond, vcpu: time.Millisecond}, nil), Warn,
			"first KVM_CREATE_VM 27.00 ms, first KVM_CREATE_VCPU 1.00 ms",
			"mount cgroup v2 with `favordynmods`; set kvm.nx_huge_pages=never if the CPU is not affected by iTLB multihit"},
		{"creates nothing", judgeCreateTime(createFacts{}, unix.ENOMEM), Fail, "cannot allocate memory", "fix the line `kvm` first"},

		{"reflinks", judgeReflink(reflinkFacts{dir: "/s", freeBytes: 20e9}, nil), OK, "/s clones files (FICLONE), 20.0 GB free", ""},
		{"reflinks but is full", judgeReflink(reflinkFacts{dir: "/s", freeBytes: 1e9}, nil), Warn, "/s clones files (FICLONE), 1.0 GB free",
			"make room or name another directory with --state"},
		{"cannot reflink", judgeReflink(reflinkFacts{dir: "/s", cloneErr: unix.EOPNOTSUPP, mkfsXFS: true, loop: true}, nil), Fail,
			"/s can't clone files (FICLONE: operation not supported)",
			"an XFS image can be loop-mounted there: `truncate -s 20G IMG && mkfs.xfs -m reflink=1 IMG && mount -o loop IMG DIR`"},
		{"cannot reflink nor make XFS", judgeReflink(reflinkFacts{dir: "/s", cloneErr: unix.EOPNOTSUPP}, nil), Fail,
			"/s can't clone files (FICLONE: operation not supported)",
			"an XFS image can be loop-mounted there: `truncate -s 20G IMG && mkfs.xfs -m reflink=1 IMG && mount -o loop IMG DIR`; first: " +
				"mkfs.xfs is missing (`apt-get install xfsprogs`), /dev/loop-control does not open (`modprobe loop`, as root)"},
		{"may not write", judgeReflink(reflinkFacts{dir: "/s", cloneErr: unix.EACCES}, nil), Fail,
			"/s can't clone files (FICLONE: permission denied)", "run as root, or name a directory of your own with --state"},
		{"state is a file", judgeReflink(reflinkFacts{}, errors.New("/s is not a directory")), Fail, "/s is not a directory",
			"name another directory with --state"},

		{"files for nobody", judgeFiles(256, nil), Fail, "256 open files, enough for 0 sandboxes",
			"raise it: `ulimit -n 1048576`, or LimitNOFILE=1048576 in the service's unit"},
		{"no files at all", judgeFiles(0, nil), Fail, "0 open files, enough for 0 sandboxes",
			"raise it: `ulimit -n 1048576`, or LimitNOFILE=1048576 in the service's unit"},
		{"files for some", judgeFiles(1024, nil), Warn, "1024 open files, enough for 76 sandboxes",
			"raise it: `ulimit -n 1048576`, or LimitNOFILE=1048576 in the service's unit"},
		{"files for many", judgeFiles(1<<20, nil), OK, "1048576 open files, enough for 104832 sandboxes", ""},

		{"memory", judgeMemory(memoryFacts{total: 8 << 30, available: 6 << 30}, nil), OK, "6.0 GiB available of 8.0", ""},
		{"little memory", judgeMemory(memoryFacts{total: 8 << 30, available: 1 << 29}, nil), Warn, "0.5 GiB available of 8.0",
			"stop what is not needed, or use a larger machine"},

		{"cgroup v2", judgeCgroup(cgroupFacts{mount: "/c", controllers: []string{"cpu", "memory", "pids"}, favorDyn: true}, nil), OK,
			"/c, writable, with cpu, memory and pids", ""},
		{"cgroup v2 without favordynmods", judgeCgroup(cgroupFacts{mount: "/c", controllers: []string{"cpu", "memory", "pids"}}, nil), OK,
			"/c, writable, with cpu, memory and pids; not favordynmods (moving a worker into its group may take milliseconds)", ""},
		{"cgroup v2 beside v1", judgeCgroup(cgroupFacts{mount: "/c", controllers: []string{"cpu"}}, nil), Warn,
			"/c, writable, without the controllers memory, pids", "boot with cgroup_no_v1=all, so that version 1 does not hold them"},
		{"no cgroup v2", judgeCgroup(cgroupFacts{}, nil), Fail, "cgroup v2 is not mounted",
			"boot with systemd.unified_cgroup_hierarchy=1, or `mount -t cgroup2 none /sys/fs/cgroup`"},
		{"cgroup v2 of another", judgeCgroup(cgroupFacts{mount: "/c", mkdirErr: unix.EROFS}, nil), Fail, "read-only file system",
			"run as root, or delegate a group to this user"},

		{"userfaultfd", judgeUffd(uffdFacts{via: "/dev/userfaultfd", missingShmem: true}, nil), OK, "MISSING on shared memory, by /dev/userfaultfd", ""},
		{"userfaultfd denied", judgeUffd(uffdFacts{}, fmt.Errorf("userfaultfd: %w", unix.EPERM)), Fail, "userfaultfd: operation not permitted",
			"run as root, give this user /dev/userfaultfd, or `sysctl vm.unprivileged_userfaultfd=1`"},
		{"userfaultfd not built in", judgeUffd(uffdFacts{}, unix.ENOSYS), Fail, "function not implemented", "use a kernel built with CONFIG_USERFAULTFD=y"},
		{"userfaultfd without MISSING", judgeUffd(uffdFacts{via: "the system call"}, nil), Fail, "userfaultfd without MISSING on shared memory", "use Linux 4.11 or later"},

		{"btf", judgeBTF(nil), OK, "/sys/kernel/btf/vmlinux", ""},
		{"no btf", judgeBTF(unix.ENOENT), Fail, "no such file or directory", "use a kernel built with CONFIG_DEBUG_INFO_BTF=y"},
		{"tcx", judgeTCX(nil), OK, "an eBPF program attaches with TCX", ""},
		{"tcx denied", judgeTCX(unix.EPERM), Fail, "operation not permitted", "run as root (or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN)"},
		{"no tcx", judgeTCX(unix.EINVAL), Fail, "invalid argument", "use Linux 6.6 or later"},
		{"tun", judgeTUN(nil), OK, "a TAP with vnet headers can be made", ""},
		{"tun denied", judgeTUN(unix.EPERM), Fail, "operation not permitted", "run as root (or with CAP_NET_ADMIN)"},
		{"no tun", judgeTUN(unix.ENOENT), Fail, "no such file or directory", "`modprobe tun`"},
		{"nftables", judgeNFT(nil), OK, "nftables masquerades", ""},
		{"nftables denied", judgeNFT(unix.EPERM), Fail, "operation not permitted", "run as root (or with CAP_NET_ADMIN)"},
		{"no nftables", judgeNFT(unix.ENOENT), Fail, "no such file or directory", "`modprobe nf_tables nft_masq nf_conntrack`, or use a kernel that has them"},

		{"kernel", judgeKernel(Kernel{Release: "6.12.1", HZ: 250}, nil), OK, "6.12.1, HZ=250", ""},
		{"asset", judgeAsset("guest kernel", "/k", nil), OK, "/k", ""},
		{"asset not set up", judgeAsset("guest kernel", "/k", errUnset), Fail, "no path given", "run `cella setup`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got.Status != tt.status || tt.got.Found != tt.found || tt.got.Do != tt.do {
				t.Errorf("got  %s %q → %q\nwant %s %q → %q", tt.got.Status, tt.got.Found, tt.got.Do, tt.status, tt.found, tt.do)
			}
			if tt.got.Status != OK && tt.got.Means == "" {
				t.Error("a check that is not ok says nothing of what it means")
			}
		})
	}
}

func TestParseCgroupMount(t *testing.T) {
	tests := []struct {
		name, mountinfo string
		mount           string
		favorDyn        bool
	}{
		{"none", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "", false},
		{"hybrid", "30 24 0:26 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu\n" +
			"31 24 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified", false},
		{"unified, favordynmods", "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate,favordynmods\n", "/sys/fs/cgroup", true},
		{"torn line", "31 24 - cgroup2\n", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := parseCgroupMount(tt.mountinfo)
			if got.mount != tt.mount || got.favorDyn != tt.favorDyn {
				t.Errorf("got %q, %v; want %q, %v", got.mount, got.favorDyn, tt.mount, tt.favorDyn)
			}
		})
	}
}
