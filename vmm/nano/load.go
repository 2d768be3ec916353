package nano

import (
	"encoding/binary"
	"fmt"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/kvm"
)

// MemoryBytes is enough for any nano guest.
const MemoryBytes = 2 << 20

// Guest-physical layout. The descriptor table has what the selectors below name.
const (
	gdtAddr  = 0x1000
	pml4Addr = 0x2000
	pdptAddr = 0x3000
	pdAddr   = 0x4000 // four pages
	codeAddr = 0x10000
	stackTop = 0x20000

	kernelCode = 0x08
	kernelData = 0x10
	userData   = 0x18 | 3
	userCode   = 0x20 | 3
)

var gdt = []uint64{
	0,
	0x00af9b000000ffff, // kernel code, 64-bit
	0x00cf93000000ffff, // kernel data
	0x00cff3000000ffff, // user data
	0x00affb000000ffff, // user code, 64-bit
}

const (
	// present, writable, accessible to user mode, accessed; large adds "a 2 MiB page", dirty.
	pageBits  = 1<<0 | 1<<1 | 1<<2 | 1<<5
	pageLarge = pageBits | 1<<7 | 1<<6

	cr0       = 1<<0 | 1<<1 | 1<<4 | 1<<5 | 1<<31 // PE, MP, ET, NE, PG
	cr4       = 1<<5 | 1<<9 | 1<<10               // PAE, OSFXSR, OSXMMEXCPT
	eferBits  = 1<<0 | 1<<8 | 1<<10               // SCE, LME, LMA
	ioplUser  = 3 << 12
	rflagsSet = 1 << 1

	msrSTAR  = 0xc0000081
	msrLSTAR = 0xc0000082
	msrFMASK = 0xc0000084
)

// Load puts the program into the machine's RAM, which must be mapped, and has the first vCPU enter it.
func (p Program) Load(m *vmm.Machine) error {
	ram := m.RAM()[0]
	copy(ram[codeAddr:], p.Code)
	writeTables(ram)
	if err := m.LoadCode(p.enter); err != nil {
		return fmt.Errorf("nano guest %q: %w", p.Name, err)
	}
	return nil
}

// writeTables maps the first 4 GiB to themselves, in pages of 2 MiB.
func writeTables(ram []byte) {
	put := func(addr, i, v uint64) { binary.LittleEndian.PutUint64(ram[addr+8*i:], v) }
	for i, d := range gdt {
		put(gdtAddr, uint64(i), d)
	}
	put(pml4Addr, 0, pdptAddr|pageBits)
	for i := range uint64(4) {
		put(pdptAddr, i, (pdAddr+i<<12)|pageBits)
		for j := range uint64(512) {
			put(pdAddr+i<<12, j, i<<30|j<<21|pageLarge)
		}
	}
}

func (p Program) enter(c *kvm.VCPU) error {
	s, err := c.Sregs()
	if err != nil {
		return err
	}
	code, data, dpl := uint16(kernelCode), uint16(kernelData), uint8(0)
	if p.User {
		code, data, dpl = userCode, userData, 3
	}
	s.CS = kvm.Segment{Limit: 0xffffffff, Selector: code, Type: 11, Present: 1, DPL: dpl, S: 1, L: 1, G: 1}
	flat := kvm.Segment{Limit: 0xffffffff, Selector: data, Type: 3, Present: 1, DPL: dpl, DB: 1, S: 1, G: 1}
	s.DS, s.ES, s.FS, s.GS, s.SS = flat, flat, flat, flat, flat
	s.GDT = kvm.DTable{Base: gdtAddr, Limit: uint16(8*len(gdt) - 1)}
	s.IDT = kvm.DTable{}
	s.CR0, s.CR3, s.CR4, s.EFER = cr0, pml4Addr, cr4, eferBits
	if err := c.SetSregs(&s); err != nil {
		return err
	}
	err = c.SetMSRs([]kvm.MSREntry{
		// SYSCALL loads kernel selectors from bits 32 on, SYSRET would load user ones from bits 48 on.
		{Index: msrSTAR, Data: kernelCode<<32 | kernelData<<48},
		{Index: msrLSTAR, Data: codeAddr + uint64(p.Syscall)},
		{Index: msrFMASK, Data: 0},
	})
	if err != nil {
		return err
	}
	return c.SetRegs(&kvm.Regs{RIP: codeAddr, RSP: stackTop, RFLAGS: rflagsSet | ioplUser})
}
