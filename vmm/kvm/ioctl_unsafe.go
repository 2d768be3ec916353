package kvm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// op is one ioctl: its number and the name used in errors.
type op struct {
	nr   uintptr
	name string
}

// The ioctl encoding of asm-generic/ioctl.h: direction, size of the argument, type 0xAE, number.
const (
	dirNone  = 0
	dirWrite = 1
	dirRead  = 2
	kvmio    = 0xAE
)

func enc(dir, nr, size uintptr) uintptr { return dir<<30 | size<<16 | kvmio<<8 | nr }

// The sizes below are those of the fixed part of a variable-length argument, as in linux/kvm.h.
const (
	cpuid2HeaderSize  = 8
	msrsHeaderSize    = 8
	msrListHeaderSize = 4
)

var (
	opGetAPIVersion       = op{enc(dirNone, 0x00, 0), "KVM_GET_API_VERSION"}
	opCreateVM            = op{enc(dirNone, 0x01, 0), "KVM_CREATE_VM"}
	opGetMSRIndexList     = op{enc(dirRead|dirWrite, 0x02, msrListHeaderSize), "KVM_GET_MSR_INDEX_LIST"}
	opCheckExtension      = op{enc(dirNone, 0x03, 0), "KVM_CHECK_EXTENSION"}
	opGetVCPUMmapSize     = op{enc(dirNone, 0x04, 0), "KVM_GET_VCPU_MMAP_SIZE"}
	opGetSupportedCPUID   = op{enc(dirRead|dirWrite, 0x05, cpuid2HeaderSize), "KVM_GET_SUPPORTED_CPUID"}
	opCreateVCPU          = op{enc(dirNone, 0x41, 0), "KVM_CREATE_VCPU"}
	opSetUserMemoryRegion = op{enc(dirWrite, 0x46, unsafe.Sizeof(MemoryRegion{})), "KVM_SET_USER_MEMORY_REGION"}
	opSetTSSAddr          = op{enc(dirNone, 0x47, 0), "KVM_SET_TSS_ADDR"}
	opSetIdentityMapAddr  = op{enc(dirWrite, 0x48, 8), "KVM_SET_IDENTITY_MAP_ADDR"}
	opIOEventFD           = op{enc(dirWrite, 0x79, unsafe.Sizeof(IOEventFD{})), "KVM_IOEVENTFD"}
	opSetClock            = op{enc(dirWrite, 0x7b, unsafe.Sizeof(ClockData{})), "KVM_SET_CLOCK"}
	opGetClock            = op{enc(dirRead, 0x7c, unsafe.Sizeof(ClockData{})), "KVM_GET_CLOCK"}
	opRun                 = op{enc(dirNone, 0x80, 0), "KVM_RUN"}
	opGetRegs             = op{enc(dirRead, 0x81, unsafe.Sizeof(Regs{})), "KVM_GET_REGS"}
	opSetRegs             = op{enc(dirWrite, 0x82, unsafe.Sizeof(Regs{})), "KVM_SET_REGS"}
	opGetSregs            = op{enc(dirRead, 0x83, unsafe.Sizeof(Sregs{})), "KVM_GET_SREGS"}
	opSetSregs            = op{enc(dirWrite, 0x84, unsafe.Sizeof(Sregs{})), "KVM_SET_SREGS"}
	opGetMSRs             = op{enc(dirRead|dirWrite, 0x88, msrsHeaderSize), "KVM_GET_MSRS"}
	opSetMSRs             = op{enc(dirWrite, 0x89, msrsHeaderSize), "KVM_SET_MSRS"}
	opGetLAPIC            = op{enc(dirRead, 0x8e, unsafe.Sizeof(LAPIC{})), "KVM_GET_LAPIC"}
	opSetLAPIC            = op{enc(dirWrite, 0x8f, unsafe.Sizeof(LAPIC{})), "KVM_SET_LAPIC"}
	opSetCPUID2           = op{enc(dirWrite, 0x90, cpuid2HeaderSize), "KVM_SET_CPUID2"}
	opGetCPUID2           = op{enc(dirRead|dirWrite, 0x91, cpuid2HeaderSize), "KVM_GET_CPUID2"}
	opGetMPState          = op{enc(dirRead, 0x98, 4), "KVM_GET_MP_STATE"}
	opSetMPState          = op{enc(dirWrite, 0x99, 4), "KVM_SET_MP_STATE"}
	opGetVCPUEvents       = op{enc(dirRead, 0x9f, unsafe.Sizeof(VCPUEvents{})), "KVM_GET_VCPU_EVENTS"}
	opSetVCPUEvents       = op{enc(dirWrite, 0xa0, unsafe.Sizeof(VCPUEvents{})), "KVM_SET_VCPU_EVENTS"}
	opGetDebugRegs        = op{enc(dirRead, 0xa1, unsafe.Sizeof(DebugRegs{})), "KVM_GET_DEBUGREGS"}
	opSetDebugRegs        = op{enc(dirWrite, 0xa2, unsafe.Sizeof(DebugRegs{})), "KVM_SET_DEBUGREGS"}
	opSetTSCKHz           = op{enc(dirNone, 0xa2, 0), "KVM_SET_TSC_KHZ"}
	opGetTSCKHz           = op{enc(dirNone, 0xa3, 0), "KVM_GET_TSC_KHZ"}
	opEnableCap           = op{enc(dirWrite, 0xa3, unsafe.Sizeof(enableCap{})), "KVM_ENABLE_CAP"}
	opGetXSave            = op{enc(dirRead, 0xa4, xsaveSize), "KVM_GET_XSAVE"}
	opSetXSave            = op{enc(dirWrite, 0xa5, xsaveSize), "KVM_SET_XSAVE"}
	opSignalMSI           = op{enc(dirWrite, 0xa5, unsafe.Sizeof(MSI{})), "KVM_SIGNAL_MSI"}
	opGetXCRs             = op{enc(dirRead, 0xa6, unsafe.Sizeof(XCRs{})), "KVM_GET_XCRS"}
	opSetXCRs             = op{enc(dirWrite, 0xa7, unsafe.Sizeof(XCRs{})), "KVM_SET_XCRS"}
	opKVMClockCtrl        = op{enc(dirNone, 0xad, 0), "KVM_KVMCLOCK_CTRL"}
	opGetXSave2           = op{enc(dirRead, 0xcf, xsaveSize), "KVM_GET_XSAVE2"}
	opPreFaultMemory      = op{enc(dirRead|dirWrite, 0xd5, unsafe.Sizeof(PreFault{})), "KVM_PRE_FAULT_MEMORY"}
)

// ioctl makes a request whose argument is a number. It uses Syscall, not RawSyscall: the request may block,
// and the goroutine must not hold its P meanwhile.
func ioctl(fd *FD, o op, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd.Int()), o.nr, arg)
	if errno != 0 {
		return int(r), fmt.Errorf("%s: %w", o.name, errno)
	}
	return int(r), nil
}

// ioctlPtr makes a request whose argument is a pointer to a struct of the kernel ABI.
func ioctlPtr[T any](fd *FD, o op, arg *T) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd.Int()), o.nr, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return int(r), fmt.Errorf("%s: %w", o.name, errno)
	}
	return int(r), nil
}

// Bytes is the memory of a fixed-size ABI struct: its little-endian encoding on the only architecture this
// package builds for. The bytes alias v.
func Bytes[T Regs | Sregs | VCPUEvents | DebugRegs | XCRs | LAPIC | MSREntry | CPUIDEntry | ClockData](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// SliceBytes is Bytes for a slice of ABI structs.
func SliceBytes[T MSREntry | CPUIDEntry](v []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), uintptr(len(v))*unsafe.Sizeof(one))
}
