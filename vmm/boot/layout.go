package boot

// Guest-physical addresses of what the loader writes.
const (
	gdtAddr        = 0x500
	bootParamsAddr = 0x7000
	pml4Addr       = 0x9000
	pdptAddr       = 0xa000
	pdAddr         = 0xb000
	cmdlineAddr    = 0x20000
	// ebdaAddr ends conventional memory; from there to 1 MiB real firmware keeps its own.
	ebdaAddr     = 0x9fc00
	acpiAddr     = 0xe0000
	acpiEnd      = 0x100000
	highMemAddr  = 0x100000
	pageSize     = 4096
	maxCmdline   = 2048 // COMMAND_LINE_SIZE of x86
	bootParamLen = 4096
)

// RAM lies in [0, LowRAMEnd) and, as far as it does not fit there, from HighRAMStart on.
const (
	LowRAMEnd    = 3 << 30
	HighRAMStart = 4 << 30
)

// LowBytes is how much of a RAM of size bytes lies below LowRAMEnd.
func LowBytes(size uint64) uint64 { return min(size, LowRAMEnd) }
