package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"cella.dev/cella/vmm/nano"
)

// kvmFacts is what /dev/kvm says about itself.
type kvmFacts struct {
	maxVCPUs int
	// missing names the first needed capability that it lacks, since the Linux that first had it; both may be empty.
	missing, since string
}

func judgeKVM(f kvmFacts, err error) Check {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Check{Status: Fail, Found: "/dev/kvm does not exist",
			Means: "the CPU's virtualization is off, hidden from this machine, or its module is not loaded",
			Do:    "enable VT-x or AMD-V in the firmware (or nested virtualization in the hypervisor), then `modprobe kvm_intel` or `modprobe kvm_amd`; without either, `cella lab` emulates such a host"}
	case errors.Is(err, fs.ErrPermission):
		return Check{Status: Fail, Found: "/dev/kvm: permission denied",
			Means: "this user may not create VMs", Do: "run as root or add the user to the group `kvm`"}
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: "/dev/kvm does not work", Do: "look at dmesg for kvm"}
	case f.missing != "":
		return Check{Status: Fail, Found: "KVM without " + f.missing,
			Means: "the VMM can't do without it", Do: "use Linux " + f.since + " or later as this machine's kernel"}
	}
	return Check{Status: OK, Found: fmt.Sprintf("has every capability that is needed, up to %d vCPUs a VM", f.maxVCPUs)}
}

// judgeStock decides by the privilege level that SYSCALL arrived at: hardware and honest emulations say 0.
func judgeStock(cpl int, err error) Check {
	const do = "use `cella lab`: it emulates a standard KVM host in which everything runs"
	var cannot *nano.CannotRunError
	switch {
	case errors.As(err, &cannot):
		return Check{Status: Fail, Found: fmt.Sprintf("a guest that makes a system call dies (%v)", cannot.Exit),
			Means: "stock guests can't run", Do: do}
	case err != nil:
		return Check{Status: Fail, Found: "could not be tried: " + err.Error(),
			Means: "nobody knows whether a stock kernel runs here", Do: "fix the line `kvm` first; or " + do}
	case cpl != 0:
		return Check{Status: Fail, Found: fmt.Sprintf("SYSCALL in a guest arrives at CPL %d instead of 0", cpl),
			Means: "stock guests can't run: their kernel can never be entered from user space", Do: do}
	}
	return Check{Status: OK, Found: "SYSCALL in a guest enters its kernel (CPL 0)"}
}

// createFacts are times of the first VM and vCPU of this process, and settings that are known to slow them down.
type createFacts struct {
	vm, vcpu time.Duration
	// nxHugePages is the module's parameter, such as "Y" or "never"; empty where it has none.
	nxHugePages string
}

// slowCreate is where a pooled worker is no longer replaced as fast as a busy host takes it.
const slowCreate = 10 * time.Millisecond

func judgeCreateTime(f createFacts, err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: "no VM can be created", Do: "fix the line `kvm` first"}
	}
	c := Check{Status: OK, Found: fmt.Sprintf("first KVM_CREATE_VM %.2f ms, first KVM_CREATE_VCPU %.2f ms", ms(f.vm), ms(f.vcpu))}
	if f.nxHugePages != "" {
		c.Found += ", nx_huge_pages=" + f.nxHugePages
	}
	if f.vm+f.vcpu > slowCreate {
		c.Status = Warn
		c.Means = "pooled workers take long to prepare; creates are slow once a burst has emptied the pool"
		c.Do = "mount cgroup v2 with `favordynmods`; set kvm.nx_huge_pages=never if the CPU is not affected by iTLB multihit"
	}
	return c
}

func readNXHugePages() string {
	b, err := os.ReadFile("/sys/module/kvm/parameters/nx_huge_pages")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
