package vmm

import (
	"math/bits"

	"cella.dev/cella/vmm/kvm"
)

// CPUID leaves that this file changes, and bits in them (Intel SDM vol. 2 CPUID, AMD APM vol. 3 appendix E,
// Documentation/virt/kvm/x86/cpuid.rst).
const (
	leafMax          = 0x0
	leafFeatures     = 0x1
	leafCache        = 0x4
	leafPerfmon      = 0xa
	leafTopology     = 0xb
	leafTopologyV2   = 0x1f
	leafKVMFeatures  = 0x40000001
	leafAMDSizes     = 0x80000008
	leafAMDCache     = 0x8000001d
	leafAMDTopology  = 0x8000001e
	leafAMDTopology2 = 0x80000026

	ecxTSCDeadline = 1 << 24
	ecxHypervisor  = 1 << 31
	edxHTT         = 1 << 28

	// kvmAsyncPF are the features around asynchronous page faults: on and off for a vCPU by MSRs, they
	// have cost guests a storm of exits, and no guest of ours waits for host swap.
	kvmAsyncPF = 1<<4 | 1<<10 | 1<<14
)

// guestCPUID is what CPUID tells vCPU id of n: all that the host supports, one package of n cores with one
// thread each whose APIC ids are their numbers, and no performance counters.
func guestCPUID(supported []kvm.CPUIDEntry, id, n int) []kvm.CPUIDEntry {
	out := make([]kvm.CPUIDEntry, 0, len(supported)+3)
	for _, e := range supported {
		switch e.Function {
		case leafTopology, leafTopologyV2, leafAMDTopology2:
			continue // leaf 0xb is added below; the others are optional and would have to agree
		}
		adapt(&e, uint32(id), uint32(n))
		out = append(out, e)
	}
	if maxLeaf(supported) >= leafTopology {
		out = append(out, topology(uint32(id), uint32(n))...)
	}
	return out
}

func maxLeaf(entries []kvm.CPUIDEntry) uint32 {
	for _, e := range entries {
		if e.Function == leafMax {
			return e.EAX
		}
	}
	return 0
}

// apicBits is how many bits of an APIC id number n cores.
func apicBits(n uint32) uint32 { return uint32(bits.Len32(n - 1)) }

func adapt(e *kvm.CPUIDEntry, id, n uint32) {
	switch e.Function {
	case leafFeatures:
		e.EBX = e.EBX&0xffff | n<<16 | id<<24
		e.ECX |= ecxHypervisor | ecxTSCDeadline
		e.EDX &^= edxHTT
		if n > 1 {
			e.EDX |= edxHTT
		}
	case leafCache, leafAMDCache:
		shareCache(e, n)
	case leafPerfmon:
		e.EAX, e.EBX, e.ECX, e.EDX = 0, 0, 0, 0
	case leafKVMFeatures:
		e.EAX &^= kvmAsyncPF
	case leafAMDSizes:
		e.ECX = n - 1 | apicBits(n)<<12
	case leafAMDTopology:
		e.EAX, e.EBX, e.ECX, e.EDX = id, id, 0, 0
	}
}

// shareCache says how many logical CPUs share a cache: one for levels 1 and 2, all for level 3.
func shareCache(e *kvm.CPUIDEntry, n uint32) {
	if e.EAX&0x1f == 0 {
		return // no more caches
	}
	level := e.EAX >> 5 & 7
	e.EAX &= 0x3fff
	if level >= 3 {
		e.EAX |= (1<<apicBits(n) - 1) << 14
	}
	if e.Function == leafCache {
		e.EAX |= (1<<apicBits(n) - 1) << 26
	}
}

// topology is leaf 0xb: a level of threads, a level of cores, the end.
func topology(id, n uint32) []kvm.CPUIDEntry {
	const levelThread, levelCore = 1 << 8, 2 << 8
	leaf := func(index, shift, count, level uint32) kvm.CPUIDEntry {
		return kvm.CPUIDEntry{Function: leafTopology, Index: index, Flags: kvm.CPUIDIndexed,
			EAX: shift, EBX: count, ECX: index | level, EDX: id}
	}
	return []kvm.CPUIDEntry{leaf(0, 0, 1, levelThread), leaf(1, apicBits(n), n, levelCore), leaf(2, 0, 0, 0)}
}
