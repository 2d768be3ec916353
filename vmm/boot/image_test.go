package boot

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"cella.dev/cella/vmm/kvm"
)

func TestLoadPlacesEverything(t *testing.T) {
	mem := make(ram, testRAM)
	initrd := bytes.Repeat([]byte{7}, 5000)
	img := Image{Kernel: bytes.NewReader(kernelELF()), Initrd: bytes.NewReader(initrd), Cmdline: "console=ttyS0"}
	entry, err := Load(mem, img, Platform{MemoryBytes: testRAM, VCPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if entry != 0x100010 {
		t.Errorf("entry is %#x", entry)
	}
	le, bp := binary.LittleEndian, mem[bootParamsAddr:]
	const initrdAddr = testRAM - 2*pageSize
	for name, c := range map[string]struct{ got, want uint64 }{
		"boot_flag":      {uint64(le.Uint16(bp[0x1fe:])), 0xaa55},
		"header":         {uint64(le.Uint32(bp[0x202:])), 0x53726448},
		"type_of_loader": {uint64(bp[0x210]), 0xff},
		"ramdisk_image":  {uint64(le.Uint32(bp[0x218:])), initrdAddr},
		"ramdisk_size":   {uint64(le.Uint32(bp[0x21c:])), 5000},
		"cmd_line_ptr":   {uint64(le.Uint32(bp[0x228:])), cmdlineAddr},
		"cmdline_size":   {uint64(le.Uint32(bp[0x238:])), 13},
		"acpi_rsdp_addr": {le.Uint64(bp[0x070:]), acpiAddr},
		"e820_entries":   {uint64(bp[0x1e8]), 3},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", name, c.got, c.want)
		}
	}
	if !bytes.Equal(mem[initrdAddr:][:5000], initrd) {
		t.Error("the initial RAM disk is not where ramdisk_image says")
	}
	if got := string(mem[cmdlineAddr:][:14]); got != "console=ttyS0\x00" {
		t.Errorf("command line is %q", got)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		img  Image
		want string
	}{
		"no kernel":           {Image{}, "no kernel"},
		"a long command line": {Image{Kernel: bytes.NewReader(kernelELF()), Cmdline: strings.Repeat("x", 2048)}, "command line: 2048 bytes, at most 2047 fit"},
		"a big initrd":        {Image{Kernel: bytes.NewReader(kernelELF()), Initrd: bytes.NewReader(make([]byte, 2<<20))}, "initrd: 2097152 bytes do not fit"},
	} {
		_, err := Load(make(ram, testRAM), c.img, Platform{MemoryBytes: testRAM, VCPUs: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

func TestMemoryMap(t *testing.T) {
	low := []e820Entry{
		{extent{0, 0x9fc00}, e820RAM},
		{extent{0x9fc00, 0x60400}, e820Reserved},
		{extent{0x100000, 0x7f00000}, e820RAM},
	}
	if got := memoryMap(128 << 20); !reflect.DeepEqual(got, low) {
		t.Errorf("128 MiB: %x, want %x", got, low)
	}
	got := memoryMap(5 << 30)
	if want := (e820Entry{extent{4 << 30, 2 << 30}, e820RAM}); len(got) != 4 || got[3] != want || got[2].size != 3<<30-1<<20 {
		t.Errorf("5 GiB: %x, want 3 GiB below the gap and %x", got, want)
	}
}

func TestEnterLongMode(t *testing.T) {
	var r kvm.Regs
	var s kvm.Sregs
	EnterLongMode(&r, &s, 0x1000000)
	if r.RIP != 0x1000000 || r.RSI != bootParamsAddr || r.RFLAGS != 2 {
		t.Errorf("registers %+v", r)
	}
	if s.CS.Selector != 0x10 || s.DS.Selector != 0x18 || s.CS.L != 1 || s.CR3 != pml4Addr || s.EFER != 0x500 || s.CR0 != 0x80000011 {
		t.Errorf("special registers %+v", s)
	}
}

// bzImage is a kernel image with a payload as Linux's build makes it: compressed, its size appended.
func bzImage(t *testing.T, elf []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	payload := binary.LittleEndian.AppendUint32(w.EncodeAll(elf, nil), uint32(len(elf)))
	const sects, offset = 1, 0x80
	b := make([]byte, (sects+1)*sectorBytes+offset, (sects+1)*sectorBytes+offset+len(payload))
	le := binary.LittleEndian
	b[bzSetupSects] = sects
	le.PutUint32(b[bpHeader:], headerMagic)
	le.PutUint16(b[bpVersion:], 0x20f)
	le.PutUint32(b[bzPayloadOffset:], offset)
	le.PutUint32(b[bzPayloadLength:], uint32(len(payload)))
	return append(b, payload...)
}

func TestExtractELF(t *testing.T) {
	want := kernelELF()
	got, err := ExtractELF(bzImage(t, want))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes (%v), want %d", len(got), err, len(want))
	}
}

func TestExtractELFRefuses(t *testing.T) {
	le := binary.LittleEndian
	payload := 2*sectorBytes + 0x80
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"short":          {func(b []byte) []byte { return b[:0x200] }, "fewer than a setup header"},
		"no header":      {func(b []byte) []byte { b[bpHeader] = 0; return b }, "HdrS"},
		"old protocol":   {func(b []byte) []byte { le.PutUint16(b[bpVersion:], 0x207); return b }, "boot protocol 0x207"},
		"truncated":      {func(b []byte) []byte { return b[:len(b)-1] }, "payload_length"},
		"empty payload":  {func(b []byte) []byte { le.PutUint32(b[bzPayloadLength:], 7); return b }, "payload_length"},
		"gzip":           {func(b []byte) []byte { copy(b[payload:], "\x1f\x8b\x08\x00"); return b }, "is not zstd"},
		"a bomb":         {func(b []byte) []byte { le.PutUint32(b[len(b)-4:], 1<<31); return b }, "unpacked size"},
		"another size":   {func(b []byte) []byte { b[len(b)-4]++; return b }, "its header says"},
		"corrupt stream": {func(b []byte) []byte { b[payload+5] ^= 0xff; return b }, "unpack payload"},
	} {
		if _, err := ExtractELF(c.change(bzImage(t, kernelELF()))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}
