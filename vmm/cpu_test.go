package vmm

import (
	"reflect"
	"testing"

	"cella.dev/cella/vmm/kvm"
)

func leaf(entries []kvm.CPUIDEntry, function, index uint32) (kvm.CPUIDEntry, int) {
	var found kvm.CPUIDEntry
	n := 0
	for _, e := range entries {
		if e.Function == function && e.Index == index {
			found, n = e, n+1
		}
	}
	return found, n
}

func TestGuestCPUIDDescribesTopology(t *testing.T) {
	supported := []kvm.CPUIDEntry{
		{Function: 0, EAX: 0x1f},
		{Function: 1, EBX: 0xff08ff, EDX: 1},
		{Function: 4, Index: 0, Flags: kvm.CPUIDIndexed, EAX: 0xfc004121},
		{Function: 4, Index: 3, Flags: kvm.CPUIDIndexed, EAX: 0xfc1fc163},
		{Function: 4, Index: 4, Flags: kvm.CPUIDIndexed, EAX: 0},
		{Function: 0xa, EAX: 0x07300404},
		{Function: 0xb, Index: 0, EAX: 7, EBX: 7, ECX: 7, EDX: 7},
		{Function: 0x1f, Index: 0, EAX: 7},
		{Function: 0x40000001, EAX: 0xffffffff},
		{Function: 0x80000008, EAX: 0x3030, ECX: 0xff},
		{Function: 0x8000001e, EAX: 99, EBX: 99, ECX: 99},
	}
	got := guestCPUID(supported, 1, 3)
	for _, want := range []kvm.CPUIDEntry{
		{Function: 0, EAX: 0x1f},
		{Function: 1, EBX: 1<<24 | 3<<16 | 0x08ff&0xffff, ECX: ecxHypervisor | ecxTSCDeadline, EDX: edxHTT | 1},
		{Function: 4, Index: 0, Flags: kvm.CPUIDIndexed, EAX: 3<<26 | 0x121},
		{Function: 4, Index: 3, Flags: kvm.CPUIDIndexed, EAX: 3<<26 | 3<<14 | 0x163},
		{Function: 4, Index: 4, Flags: kvm.CPUIDIndexed},
		{Function: 0xa},
		{Function: 0xb, Index: 0, Flags: kvm.CPUIDIndexed, EAX: 0, EBX: 1, ECX: 0x100, EDX: 1},
		{Function: 0xb, Index: 1, Flags: kvm.CPUIDIndexed, EAX: 2, EBX: 3, ECX: 0x201, EDX: 1},
		{Function: 0xb, Index: 2, Flags: kvm.CPUIDIndexed, ECX: 2, EDX: 1},
		{Function: 0x40000001, EAX: 0xffffffff &^ (1<<4 | 1<<10 | 1<<14)},
		{Function: 0x80000008, EAX: 0x3030, ECX: 2<<12 | 2},
		{Function: 0x8000001e, EAX: 1, EBX: 1},
	} {
		if e, n := leaf(got, want.Function, want.Index); n != 1 || e != want {
			t.Errorf("leaf %#x.%d is there %d times as %+v, want %+v", want.Function, want.Index, n, e, want)
		}
	}
	if _, n := leaf(got, 0x1f, 0); n != 0 {
		t.Error("leaf 0x1f is there and may contradict leaf 0xb")
	}
}

func TestOneVCPUHasNoSiblings(t *testing.T) {
	got := guestCPUID([]kvm.CPUIDEntry{{Function: 0, EAX: 0xb}, {Function: 1, EDX: edxHTT}}, 0, 1)
	if e, _ := leaf(got, 1, 0); e.EDX&edxHTT != 0 || e.EBX != 1<<16 {
		t.Errorf("leaf 1 of a single vCPU is %+v", e)
	}
	if e, _ := leaf(got, 0xb, 1); e.EAX != 0 || e.EBX != 1 {
		t.Errorf("leaf 0xb.1 of a single vCPU is %+v", e)
	}
	if got := guestCPUID([]kvm.CPUIDEntry{{Function: 0, EAX: 7}}, 0, 1); len(got) != 1 {
		t.Errorf("a CPU without leaf 0xb got %+v", got)
	}
}

func TestCPUModel(t *testing.T) {
	for name, c := range map[string]struct {
		eax  uint32
		want CPUModel
	}{
		"Sapphire Rapids": {0x000806f8, CPUModel{Family: 6, Model: 0x8f}},
		"Milan":           {0x00a00f11, CPUModel{Family: 0x19, Model: 1}},
		"Hammer":          {0x00060fb1, CPUModel{Family: 15, Model: 0x6b}},
	} {
		c.want.Vendor = [12]byte([]byte("AuthenticAMD"))
		got := cpuModel([]kvm.CPUIDEntry{
			{Function: 0, EBX: 0x68747541, EDX: 0x69746e65, ECX: 0x444d4163}, {Function: 1, EAX: c.eax},
		})
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestMSRsAreSelectedInOrder(t *testing.T) {
	got := selectMSRs([]uint32{0x6e0, 0x174, 0x4b564d05, 0xc0000102, 0x10, 0x38f, 0x4b564d00, 0x2ff, 0x17a})
	want := []uint32{0x10, 0x174, 0x2ff, 0x4b564d00, 0x4b564d05, 0xc0000102, 0x6e0}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("MSRs are %#x, want %#x: the TSC first, its deadline last, no performance counters", got, want)
	}
}

func TestExpiredDeadlineIsRearmed(t *testing.T) {
	for _, c := range []struct{ deadline, want uint64 }{{0, 500}, {400, 400}, {600, 600}} {
		got := rearmDeadline([]kvm.MSREntry{{Index: msrTSC, Data: 500}, {Index: msrTSCDeadline, Data: c.deadline}})
		if got[1].Data != c.want || got[0].Data != 500 {
			t.Errorf("deadline %d at TSC 500 is saved as %d, want %d", c.deadline, got[1].Data, c.want)
		}
	}
}
