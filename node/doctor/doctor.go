// Package doctor finds out, by trying, whether this machine can serve sandboxes. It never trusts the name of a
// module or a version where it can do the thing itself: it opens /dev/kvm and creates a VM, clones a file, attaches
// an eBPF program. Every check cleans up after itself and has a time limit.
//
//	probe (touches the machine) → facts → judge (pure) → Check
//
// The probes are fields of host, so that tests inject any failure; the judges hold the knowledge of what a fact
// means and what to do about it.
package doctor

import (
	"context"
	"fmt"
	"time"
)

// Status is how a check ended.
type Status string

// The three ends of a check. Only a required check that failed keeps a machine from being ready.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is one line of the report. Means and Do are empty where there is nothing to explain or to do.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Required says that `cella serve` can't work today without it.
	Required bool   `json:"required"`
	Found    string `json:"found"`
	Means    string `json:"means"`
	Do       string `json:"do"`
}

// Kernel names the running kernel. HZ is 0 where it can't be told.
type Kernel struct {
	Release string `json:"release"`
	HZ      int    `json:"hz"`
}

// Report is all that was found.
type Report struct {
	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"`
	Kernel Kernel  `json:"kernel"`
}

// Options says where to look. The zero value looks in the default places and can't judge guest semantics.
type Options struct {
	// StateDir will hold the sandboxes' disks; it may not exist yet. Default /var/lib/cella.
	StateDir string
	// GuestKernel (an ELF) and GuestRootfs (an ext4 image) are what `cella setup` leaves behind.
	GuestKernel, GuestRootfs string
	// AssetsErr is why they could not be found, where a path is empty.
	AssetsErr error
	// SyscallCPL runs a guest that executes SYSCALL in user mode, and returns the privilege level it arrived at.
	// Nil fails the check, because then nobody knows.
	SyscallCPL func(context.Context) (cpl int, err error)
	// CheckTimeout bounds each check. Default 10 s.
	CheckTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.StateDir == "" {
		o.StateDir = "/var/lib/cella"
	}
	if o.CheckTimeout == 0 {
		o.CheckTimeout = 10 * time.Second
	}
	return o
}

// check binds a name to the function that tries it.
type check struct {
	name     string
	required bool
	run      func(context.Context) Check
}

// Run makes every check, one after the other: some measure time.
func Run(ctx context.Context, o Options) Report {
	return run(ctx, o.withDefaults(), realHost())
}

func run(ctx context.Context, o Options, h host) Report {
	kernel, kernelErr := h.kernel()
	r := Report{Ready: true, Kernel: kernel}
	for _, c := range checks(o, h) {
		got := within(ctx, o.CheckTimeout, c)
		if got.Required && got.Status == Fail {
			r.Ready = false
		}
		r.Checks = append(r.Checks, got)
	}
	k := judgeKernel(kernel, kernelErr)
	k.Name = "kernel"
	r.Checks = append(r.Checks, k)
	return r
}

// checks lists what is tried, in the order of the report: what most often fails first.
func checks(o Options, h host) []check {
	return []check{
		{"kvm", true, func(context.Context) Check { return judgeKVM(h.kvm()) }},
		{"stock_guests", true, func(ctx context.Context) Check { return judgeStock(h.syscallCPL(ctx, o)) }},
		{"vm_create_time", false, func(context.Context) Check { return judgeCreateTime(h.createTime()) }},
		{"reflink", true, func(context.Context) Check { return judgeReflink(h.reflink(o.StateDir)) }},
		{"open_files", true, func(context.Context) Check { return judgeFiles(h.openFiles()) }},
		{"guest_kernel", true, func(context.Context) Check {
			return judgeAsset("guest kernel", o.GuestKernel, h.asset(o, o.GuestKernel, h.elf))
		}},
		{"guest_rootfs", true, func(context.Context) Check {
			return judgeAsset("base rootfs", o.GuestRootfs, h.asset(o, o.GuestRootfs, h.ext4))
		}},
		{"memory", false, func(context.Context) Check { return judgeMemory(h.memory()) }},
		{"cgroup_v2", false, func(context.Context) Check { return judgeCgroup(h.cgroup()) }},
		{"userfaultfd", false, func(context.Context) Check { return judgeUffd(h.uffd()) }},
		{"btf", false, func(context.Context) Check { return judgeBTF(h.btf()) }},
		{"tcx", false, func(context.Context) Check { return judgeTCX(h.tcx()) }},
		{"tun", false, func(context.Context) Check { return judgeTUN(h.tun()) }},
		{"nftables", false, func(context.Context) Check { return judgeNFT(h.nft()) }},
	}
}

// within runs one check under its time limit. A check that hangs in the kernel can't be stopped: it is left behind
// on its goroutine, and ends with the process.
func within(ctx context.Context, limit time.Duration, c check) Check {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan Check, 1)
	go func() { done <- c.run(ctx) }()
	var got Check
	select {
	case got = <-done:
	case <-ctx.Done():
		got = Check{
			Status: Fail, Found: fmt.Sprintf("no answer within %v", limit),
			Means: "the kernel or the device is stuck", Do: "look at dmesg, then run `cella doctor` again",
		}
	}
	got.Name, got.Required = c.name, c.required
	if !c.required && got.Status == Fail {
		got.Status = Warn
	}
	return got
}
