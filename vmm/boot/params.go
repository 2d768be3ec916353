package boot

import (
	"encoding/binary"

	"cella.dev/cella/vmm/virtio"
)

// Offsets in struct boot_params (Documentation/arch/x86/zero-page.rst and boot.rst).
const (
	bpACPIRSDP     = 0x070
	bpE820Entries  = 0x1e8
	bpBootFlag     = 0x1fe
	bpHeader       = 0x202
	bpVersion      = 0x206
	bpLoaderType   = 0x210
	bpLoadFlags    = 0x211
	bpRamdiskImage = 0x218
	bpRamdiskSize  = 0x21c
	bpCmdlinePtr   = 0x228
	bpAlignment    = 0x230
	bpCmdlineSize  = 0x238
	bpE820Table    = 0x2d0
	e820EntryLen   = 20

	bootFlag        = 0xaa55
	headerMagic     = 0x53726448 // "HdrS"
	bootProtocol    = 0x020f
	loaderUndefined = 0xff
	loadedHigh      = 1
	kernelAlignment = 0x1000000

	e820RAM      = 1
	e820Reserved = 2
)

type e820Entry struct {
	extent
	kind uint32
}

// memoryMap lists RAM and what the firmware keeps below 1 MiB, where the ACPI tables are.
func memoryMap(size uint64) []e820Entry {
	low := LowBytes(size)
	m := []e820Entry{
		{extent{0, ebdaAddr}, e820RAM},
		{extent{ebdaAddr, highMemAddr - ebdaAddr}, e820Reserved},
		{extent{highMemAddr, low - highMemAddr}, e820RAM},
	}
	if size > low {
		m = append(m, e820Entry{extent{HighRAMStart, size - low}, e820RAM})
	}
	return m
}

func writeBootParams(mem virtio.Memory, memoryBytes uint64, initrd extent, cmdlineLen int) error {
	b, err := mem.Bytes(bootParamsAddr, bootParamLen)
	if err != nil {
		return err
	}
	clear(b)
	le := binary.LittleEndian
	le.PutUint64(b[bpACPIRSDP:], acpiAddr)
	le.PutUint16(b[bpBootFlag:], bootFlag)
	le.PutUint32(b[bpHeader:], headerMagic)
	le.PutUint16(b[bpVersion:], bootProtocol)
	b[bpLoaderType] = loaderUndefined
	b[bpLoadFlags] = loadedHigh
	le.PutUint32(b[bpRamdiskImage:], uint32(initrd.addr))
	le.PutUint32(b[bpRamdiskSize:], uint32(initrd.size))
	le.PutUint32(b[bpCmdlinePtr:], cmdlineAddr)
	le.PutUint32(b[bpCmdlineSize:], uint32(cmdlineLen))
	le.PutUint32(b[bpAlignment:], kernelAlignment)
	m := memoryMap(memoryBytes)
	b[bpE820Entries] = byte(len(m))
	for i, e := range m {
		p := b[bpE820Table+i*e820EntryLen:]
		le.PutUint64(p, e.addr)
		le.PutUint64(p[8:], e.size)
		le.PutUint32(p[16:], e.kind)
	}
	return nil
}
