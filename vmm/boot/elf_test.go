package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// ram is guest memory from address 0.
type ram []byte

func (r ram) Bytes(addr uint64, n uint32) ([]byte, error) {
	if addr > uint64(len(r)) || uint64(n) > uint64(len(r))-addr {
		return nil, fmt.Errorf("[%#x, +%#x) is not RAM", addr, n)
	}
	return r[addr : addr+uint64(n)], nil
}

const testRAM = 4 << 20

// kernelELF is a kernel with one segment of code at 1 MiB and one at 2 MiB that has 4 KiB of bss.
func kernelELF() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0x1100)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], elfExec)
	le.PutUint16(b[18:], elfMachineX86)
	le.PutUint64(b[24:], 0x100010)
	le.PutUint64(b[32:], elfHeaderLen)
	le.PutUint16(b[54:], elfProgLen)
	le.PutUint16(b[56:], 3)
	for i, s := range []segment{{0x1000, 0x100000, 0x80, 0x80}, {0x1080, 0x200000, 0x80, 0x1080}} {
		p := b[elfHeaderLen+i*elfProgLen:]
		le.PutUint32(p, progLoad)
		le.PutUint64(p[8:], s.offset)
		le.PutUint64(p[24:], s.paddr)
		le.PutUint64(p[32:], s.filesz)
		le.PutUint64(p[40:], s.memsz)
	}
	le.PutUint32(b[elfHeaderLen+2*elfProgLen:], 4) // a note: not loaded, whatever its fields say
	for i := range 0x100 {
		b[0x1000+i] = byte(i)
	}
	return b
}

func TestELFSegmentsAreLoaded(t *testing.T) {
	elf, mem := kernelELF(), make(ram, testRAM)
	entry, end, err := loadELF(mem, bytes.NewReader(elf), testRAM)
	if err != nil {
		t.Fatal(err)
	}
	if entry != 0x100010 || end != 0x201080 {
		t.Errorf("entry %#x, end %#x, want 0x100010, 0x201080", entry, end)
	}
	want := make(ram, testRAM)
	copy(want[0x100000:], elf[0x1000:0x1080])
	copy(want[0x200000:], elf[0x1080:0x1100])
	if !bytes.Equal(mem, want) {
		t.Error("memory does not hold exactly the two segments")
	}
}

func TestELFErrorsNameField(t *testing.T) {
	le := binary.LittleEndian
	seg := func(i int) int { return elfHeaderLen + i*elfProgLen }
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		field  string
	}{
		"empty":                 {func([]byte) []byte { return nil }, "header"},
		"a bzImage":             {func(b []byte) []byte { copy(b, "MZ"); return b }, "e_ident"},
		"32-bit":                {func(b []byte) []byte { b[4] = 1; return b }, "EI_CLASS"},
		"big-endian":            {func(b []byte) []byte { b[5] = 2; return b }, "EI_DATA"},
		"an object file":        {func(b []byte) []byte { b[16] = 1; return b }, "e_type"},
		"arm64":                 {func(b []byte) []byte { b[18] = 183; return b }, "e_machine"},
		"short program headers": {func(b []byte) []byte { b[54] = 32; return b }, "e_phentsize"},
		"no program headers":    {func(b []byte) []byte { b[56] = 0; return b }, "e_phnum"},
		"65,535 of them":        {func(b []byte) []byte { le.PutUint16(b[56:], 0xffff); return b }, "e_phnum"},
		"beyond the file":       {func(b []byte) []byte { le.PutUint64(b[32:], 0x10f0); return b }, "e_phoff"},
		"overflowing":           {func(b []byte) []byte { le.PutUint64(b[32:], ^uint64(0)-8); return b }, "e_phoff"},
		"truncated":             {func(b []byte) []byte { return b[:0x10ff] }, "p_filesz of segment 1"},
		"offset overflow":       {func(b []byte) []byte { le.PutUint64(b[seg(0)+8:], ^uint64(0)); return b }, "p_filesz of segment 0"},
		"size overflow":         {func(b []byte) []byte { le.PutUint64(b[seg(0)+32:], ^uint64(0)); return b }, "p_filesz of segment 0"},
		"less memory than file": {func(b []byte) []byte { le.PutUint64(b[seg(1)+40:], 0x7f); return b }, "p_memsz of segment 1"},
		"over boot parameters":  {func(b []byte) []byte { le.PutUint64(b[seg(0)+24:], 0x7000); return b }, "p_paddr of segment 0"},
		"beyond memory":         {func(b []byte) []byte { le.PutUint64(b[seg(1)+40:], testRAM); return b }, "p_memsz of segment 1"},
		"address overflow":      {func(b []byte) []byte { le.PutUint64(b[seg(1)+24:], ^uint64(0)-0x7f); return b }, "p_memsz of segment 1"},
		"entry outside":         {func(b []byte) []byte { le.PutUint64(b[24:], 0x100080); return b }, "e_entry"},
		"entry in bss":          {func(b []byte) []byte { le.PutUint64(b[24:], 0x200080); return b }, "e_entry"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := make(ram, testRAM)
			_, _, err := loadELF(mem, bytes.NewReader(c.change(kernelELF())), testRAM)
			var fe *FieldError
			if !errors.As(err, &fe) || fe.Field != c.field {
				t.Errorf("error is %v, want one of field %s", err, c.field)
			}
			if !bytes.Equal(mem, make(ram, testRAM)) {
				t.Error("a refused kernel was partly loaded")
			}
		})
	}
}

// FuzzELF: no file, however corrupt, makes the loader panic or write outside of the segments' room.
func FuzzELF(f *testing.F) {
	f.Add(kernelELF())
	f.Add(kernelELF()[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := make(ram, testRAM)
		_, end, err := loadELF(mem, bytes.NewReader(b), testRAM)
		if err == nil && (end < highMemAddr || end > testRAM) {
			t.Errorf("loaded up to %#x", end)
		}
		if !bytes.Equal(mem[:highMemAddr], make([]byte, highMemAddr)) {
			t.Error("something was written below 1 MiB")
		}
	})
}
