package kvm

// Regs is struct kvm_regs: the general registers.
type Regs struct {
	RAX, RBX, RCX, RDX uint64
	RSI, RDI, RSP, RBP uint64
	R8, R9, R10, R11   uint64
	R12, R13, R14, R15 uint64
	RIP, RFLAGS        uint64
}

// Segment is struct kvm_segment: a segment register with its hidden part.
type Segment struct {
	Base                           uint64
	Limit                          uint32
	Selector                       uint16
	Type                           uint8
	Present, DPL, DB, S, L, G, AVL uint8
	Unusable                       uint8
	_                              uint8
}

// DTable is struct kvm_dtable: GDTR or IDTR.
type DTable struct {
	Base  uint64
	Limit uint16
	_     [3]uint16
}

// Sregs is struct kvm_sregs: segments, control registers, and the APIC base.
type Sregs struct {
	CS, DS, ES, FS, GS, SS Segment
	TR, LDT                Segment
	GDT, IDT               DTable
	CR0, CR2, CR3, CR4     uint64
	CR8                    uint64
	EFER                   uint64
	APICBase               uint64
	InterruptBitmap        [4]uint64
}

// VCPUEvents is struct kvm_vcpu_events: exceptions, interrupts and NMIs on their way to the guest.
type VCPUEvents struct {
	ExceptionInjected, ExceptionNr, ExceptionHasError, ExceptionPending uint8
	ExceptionError                                                      uint32
	InterruptInjected, InterruptNr, InterruptSoft, InterruptShadow      uint8
	NMIInjected, NMIPending, NMIMasked, _                               uint8
	SIPIVector                                                          uint32
	Flags                                                               uint32
	SMISMM, SMIPending, SMIInsideNMI, SMILatchedInit                    uint8
	TripleFaultPending                                                  uint8
	_                                                                   [26]uint8
	ExceptionHasPayload                                                 uint8
	ExceptionPayload                                                    uint64
}

// DebugRegs is struct kvm_debugregs.
type DebugRegs struct {
	DB       [4]uint64
	DR6, DR7 uint64
	Flags    uint64
	_        [9]uint64
}

// XCR is struct kvm_xcr: one extended control register.
type XCR struct {
	Number uint32
	_      uint32
	Value  uint64
}

// XCRs is struct kvm_xcrs.
type XCRs struct {
	Count uint32
	Flags uint32
	XCR   [16]XCR
	_     [16]uint64
}

// LAPIC is struct kvm_lapic_state: the local APIC's register page.
type LAPIC struct {
	Regs [1024]byte
}

// MSREntry is struct kvm_msr_entry.
type MSREntry struct {
	Index uint32
	_     uint32
	Data  uint64
}

// CPUIDEntry is struct kvm_cpuid_entry2.
type CPUIDEntry struct {
	Function, Index    uint32
	Flags              uint32
	EAX, EBX, ECX, EDX uint32
	_                  [3]uint32
}

// CPUIDIndexed in CPUIDEntry.Flags: Index matters for this function.
const CPUIDIndexed = 1

// ClockData is struct kvm_clock_data: kvmclock in nanoseconds, and from Linux 5.16 the host's clocks at the
// same instant.
type ClockData struct {
	Clock    uint64
	Flags    uint32
	_        uint32
	Realtime uint64
	HostTSC  uint64
	_        [4]uint32
}

// MemoryRegion is struct kvm_userspace_memory_region. Addresses and sizes are in bytes, page-aligned.
type MemoryRegion struct {
	Slot          uint32
	Flags         uint32
	GuestPhysAddr uint64
	Size          uint64
	UserspaceAddr uint64
}

// IOEventFD is struct kvm_ioeventfd.
type IOEventFD struct {
	DataMatch uint64
	Addr      uint64
	Len       uint32
	FD        int32
	Flags     uint32
	_         [36]uint8
}

// IOEventFDDataMatch in IOEventFD.Flags: only a write of DataMatch signals.
const IOEventFDDataMatch = 1

// MSI is struct kvm_msi: one interrupt message, as a device or an IOAPIC would put on the bus.
type MSI struct {
	AddressLow, AddressHigh uint32
	Data                    uint32
	Flags                   uint32
	DevID                   uint32
	_                       [12]uint8
}

type enableCap struct {
	Cap   uint32
	Flags uint32
	Args  [4]uint64
	_     [64]uint8
}

// MPState is struct kvm_mp_state: what a vCPU is doing.
type MPState uint32

// The multiprocessing states of x86 (api.rst §4.38).
const (
	MPRunnable MPState = iota
	MPUninitialized
	MPInitReceived
	MPHalted
	MPSIPIReceived
)

// xsaveSize is the size of struct kvm_xsave; CapXSave2 tells the real size where it is larger.
const xsaveSize = 4096

// PreFault is a range of guest-physical memory for VCPU.PreFault (struct kvm_pre_fault_memory). KVM advances Addr
// and shrinks Size as it goes.
type PreFault struct {
	Addr, Size uint64
	Flags      uint64
	_          [5]uint64
}
