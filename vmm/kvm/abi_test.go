package kvm

import (
	"testing"
	"unsafe"
)

// Sizes, offsets and numbers as a C compiler gives them for linux/kvm.h (Linux 6.1, x86-64).

func TestStructSizes(t *testing.T) {
	for name, c := range map[string]struct{ got, want uintptr }{
		"kvm_regs":                    {unsafe.Sizeof(Regs{}), 144},
		"kvm_segment":                 {unsafe.Sizeof(Segment{}), 24},
		"kvm_dtable":                  {unsafe.Sizeof(DTable{}), 16},
		"kvm_sregs":                   {unsafe.Sizeof(Sregs{}), 312},
		"kvm_vcpu_events":             {unsafe.Sizeof(VCPUEvents{}), 64},
		"kvm_debugregs":               {unsafe.Sizeof(DebugRegs{}), 128},
		"kvm_xcrs":                    {unsafe.Sizeof(XCRs{}), 392},
		"kvm_lapic_state":             {unsafe.Sizeof(LAPIC{}), 1024},
		"kvm_msr_entry":               {unsafe.Sizeof(MSREntry{}), 16},
		"kvm_cpuid_entry2":            {unsafe.Sizeof(CPUIDEntry{}), 40},
		"kvm_clock_data":              {unsafe.Sizeof(ClockData{}), 48},
		"kvm_userspace_memory_region": {unsafe.Sizeof(MemoryRegion{}), 32},
		"kvm_ioeventfd":               {unsafe.Sizeof(IOEventFD{}), 64},
		"kvm_msi":                     {unsafe.Sizeof(MSI{}), 32},
		"kvm_pre_fault_memory":        {unsafe.Sizeof(PreFault{}), 64},
		"kvm_enable_cap":              {unsafe.Sizeof(enableCap{}), 104},
		"kvm_mp_state":                {unsafe.Sizeof(MPState(0)), 4},
		"kvm_cpuid2 with its entries": {unsafe.Sizeof(cpuid2{}), 8 + 256*40},
		"kvm_msrs with its entries":   {unsafe.Sizeof(msrs{}), 8 + 256*16},
	} {
		if c.got != c.want {
			t.Errorf("struct %s has %d bytes, want %d", name, c.got, c.want)
		}
	}
}

func TestFieldOffsets(t *testing.T) {
	for name, c := range map[string]struct{ got, want uintptr }{
		"kvm_vcpu_events.triple_fault":      {unsafe.Offsetof(VCPUEvents{}.TripleFaultPending), 28},
		"kvm_vcpu_events.exception_payload": {unsafe.Offsetof(VCPUEvents{}.ExceptionPayload), 56},
		"kvm_run.exit_reason":               {unsafe.Offsetof(runArea{}.reason), 8},
		"kvm_run.mmio":                      {unsafe.Offsetof(runArea{}.union), 32},
		"kvm_cpuid2.entries":                {unsafe.Offsetof(cpuid2{}.entries), cpuid2HeaderSize},
		"kvm_msrs.entries":                  {unsafe.Offsetof(msrs{}.entries), msrsHeaderSize},
		"kvm_msr_list.indices":              {unsafe.Offsetof(msrList{}.indices), msrListHeaderSize},
	} {
		if c.got != c.want {
			t.Errorf("%s is at %d, want %d", name, c.got, c.want)
		}
	}
}

func TestIoctlNumbers(t *testing.T) {
	for _, c := range []struct {
		op   op
		want uintptr
	}{
		{opRun, 0xae80},
		{opSetUserMemoryRegion, 0x4020ae46},
		{opGetMSRIndexList, 0xc004ae02},
		{opGetSupportedCPUID, 0xc008ae05},
		{opSetMSRs, 0x4008ae89},
		{opGetMSRs, 0xc008ae88},
		{opIOEventFD, 0x4040ae79},
		{opSignalMSI, 0x4020aea5},
		{opEnableCap, 0x4068aea3},
		{opSetLAPIC, 0x4400ae8f},
		{opGetSregs, 0x8138ae83},
		{opSetVCPUEvents, 0x4040aea0},
		{opSetClock, 0x4030ae7b},
		{opGetMPState, 0x8004ae98},
		{opGetXSave2, 0x9000aecf},
	} {
		if c.op.nr != c.want {
			t.Errorf("%s is %#x, want %#x", c.op.name, c.op.nr, c.want)
		}
	}
}
