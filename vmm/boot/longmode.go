package boot

import (
	"encoding/binary"

	"cella.dev/cella/vmm/kvm"
	"cella.dev/cella/vmm/virtio"
)

const (
	pagePresent = 1 << 0
	pageWrite   = 1 << 1
	pageLarge   = 1 << 7

	cr0PE   = 1 << 0
	cr0ET   = 1 << 4
	cr0PG   = 1 << 31
	cr4PAE  = 1 << 5
	eferLME = 1 << 8
	eferLMA = 1 << 10
)

// The boot protocol wants a flat code segment at selector 0x10 and a flat data segment at 0x18
// (Documentation/arch/x86/boot.rst, 64-bit boot protocol).
var gdt = [4]uint64{
	0,
	0,
	0x00af9b000000ffff, // 0x10: 64-bit code
	0x00cf93000000ffff, // 0x18: data
}

const (
	codeSelector = 0x10
	dataSelector = 0x18
)

// writeLongMode maps the first GiB to itself in 2 MiB pages and writes the descriptor table.
func writeLongMode(mem virtio.Memory) error {
	le := binary.LittleEndian
	tables := []struct {
		addr    uint64
		entries func(b []byte)
		len     uint32
	}{
		{gdtAddr, func(b []byte) {
			for i, d := range gdt {
				le.PutUint64(b[8*i:], d)
			}
		}, 8 * uint32(len(gdt))},
		{pml4Addr, func(b []byte) { le.PutUint64(b, pdptAddr|pagePresent|pageWrite) }, pageSize},
		{pdptAddr, func(b []byte) { le.PutUint64(b, pdAddr|pagePresent|pageWrite) }, pageSize},
		{pdAddr, func(b []byte) {
			for i := range uint64(512) {
				le.PutUint64(b[8*i:], i<<21|pagePresent|pageWrite|pageLarge)
			}
		}, pageSize},
	}
	for _, t := range tables {
		b, err := mem.Bytes(t.addr, t.len)
		if err != nil {
			return err
		}
		t.entries(b)
	}
	return nil
}

// EnterLongMode sets the first vCPU's registers for the kernel's 64-bit entry: paging on, flat segments,
// interrupts off, the address of the boot parameters in RSI. s holds the vCPU's reset state.
func EnterLongMode(r *kvm.Regs, s *kvm.Sregs, entry uint64) {
	*r = kvm.Regs{RIP: entry, RSI: bootParamsAddr, RFLAGS: 2}
	code := kvm.Segment{Limit: 0xffffffff, Selector: codeSelector, Type: 11, Present: 1, S: 1, L: 1, G: 1}
	data := kvm.Segment{Limit: 0xffffffff, Selector: dataSelector, Type: 3, Present: 1, DB: 1, S: 1, G: 1}
	s.CS = code
	s.DS, s.ES, s.FS, s.GS, s.SS = data, data, data, data, data
	s.GDT = kvm.DTable{Base: gdtAddr, Limit: 8*uint16(len(gdt)) - 1}
	s.IDT = kvm.DTable{}
	s.CR0 = cr0PE | cr0ET | cr0PG
	s.CR3 = pml4Addr
	s.CR4 = cr4PAE
	s.EFER = eferLME | eferLMA
}
