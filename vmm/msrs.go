package vmm

import (
	"slices"

	"cella.dev/cella/vmm/kvm"
)

// MSR numbers with a name in this package (Intel SDM vol. 4, AMD APM vol. 2 appendix A,
// Documentation/virt/kvm/x86/msr.rst).
const (
	msrTSC         = 0x10
	msrFeatureCtl  = 0x3a
	msrMiscEnable  = 0x1a0
	msrMTRRDefault = 0x2ff
	msrTSCDeadline = 0x6e0

	msrKVMFirst = 0x4b564d00
	msrKVMLast  = 0x4b564dff
)

// msrRange is an inclusive range of MSR numbers.
type msrRange struct{ first, last uint32 }

// savedRanges is what a Linux guest may have set and needs back. Machine check, performance counter, debug
// store and nested virtualisation MSRs are left out: guests do not get those features.
var savedRanges = []msrRange{
	{0x10, 0x12},              // TSC; old kvmclock
	{0x3a, 0x3b},              // feature control, TSC adjust
	{0x48, 0x48},              // speculation control
	{0xe1, 0xe1},              // umwait control
	{0x10a, 0x10a},            // architecture capabilities
	{0x122, 0x122},            // TSX control
	{0x140, 0x140},            // misc features
	{0x174, 0x176},            // sysenter
	{0x1a0, 0x1a0},            // misc enable
	{0x1c4, 0x1c5},            // extended feature disable
	{0x277, 0x277},            // page attribute table
	{0x2ff, 0x2ff},            // memory type default
	{0x6a0, 0x6a8},            // shadow stacks
	{0x6e0, 0x6e0},            // TSC deadline
	{0xda0, 0xda0},            // supervisor XSAVE
	{0xc0000081, 0xc0000084},  // syscall
	{0xc0000102, 0xc0000103},  // kernel GS base, TSC aux
	{0xc001011f, 0xc001011f},  // virtual speculation control
	{msrKVMFirst, msrKVMLast}, // kvmclock, steal time, …: all of them
}

// unlistedMSRs are needed and readable although KVM's list lacks them.
var unlistedMSRs = []uint32{msrMTRRDefault}

// savedMSRs is KVM's list cut down to savedRanges, in the order in which they must be set: the TSC first,
// because the others may depend on it, and the TSC deadline last, because it arms a timer against the TSC.
func savedMSRs(sys *kvm.System) ([]uint32, error) {
	listed, err := sys.MSRIndices()
	if err != nil {
		return nil, err
	}
	return selectMSRs(listed), nil
}

func selectMSRs(listed []uint32) []uint32 {
	var out []uint32
	for _, i := range append(listed, unlistedMSRs...) {
		if slices.ContainsFunc(savedRanges, func(r msrRange) bool { return r.first <= i && i <= r.last }) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b uint32) int { return msrRank(a) - msrRank(b) })
	return slices.Compact(out)
}

// msrRank orders MSRs for setting; equal numbers end up together.
func msrRank(i uint32) int {
	switch i {
	case msrTSC:
		return -1
	case msrTSCDeadline:
		return 1 << 32
	}
	return int(i)
}

// mayReject reports whether an MSR that the host will not take back can be left out: it only locks features
// that guests do not get.
func mayReject(index uint32) bool { return index == msrFeatureCtl }
