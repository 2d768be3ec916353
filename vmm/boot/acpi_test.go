package boot

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
)

func sum(b []byte) (s byte) {
	for _, v := range b {
		s += v
	}
	return s
}

// TestTablesAreLinked walks the tables as a guest does, from the RSDP on.
func TestTablesAreLinked(t *testing.T) {
	mem := make(ram, testRAM)
	if err := writeACPI(mem, Platform{VCPUs: 2, Serial: true, Virtio: []VirtioWindow{{0xd0000000, 0x1000, 5}}}); err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	tableAt := func(addr uint64, signature string) []byte {
		t.Helper()
		n := le.Uint32(mem[addr+4:])
		b := mem[addr : addr+uint64(n)]
		if string(b[:4]) != signature || sum(b) != 0 {
			t.Fatalf("table at %#x is %q with sum %d, want %q with 0", addr, b[:4], sum(b), signature)
		}
		return b
	}
	p := mem[acpiAddr:][:rsdpLen]
	if string(p[:8]) != "RSD PTR " || sum(p[:20]) != 0 || sum(p) != 0 || p[15] != 2 {
		t.Fatalf("RSDP is % x", p)
	}
	x := tableAt(le.Uint64(p[24:]), "XSDT")
	if len(x) != 36+2*8 {
		t.Fatalf("XSDT has %d bytes, want two entries", len(x))
	}
	f := tableAt(le.Uint64(x[36:]), "FACP")
	m := tableAt(le.Uint64(x[44:]), "APIC")
	tableAt(le.Uint64(f[140:]), "DSDT")
	if len(f) != 276 || f[8] != 6 || le.Uint32(f[112:]) != 0x00100431 || le.Uint16(f[109:]) != 0x24 {
		t.Errorf("FADT: %d bytes, revision %d, flags %#x, boot flags %#x", len(f), f[8], le.Uint32(f[112:]), le.Uint16(f[109:]))
	}
	for offset, want := range map[int]string{
		116: "010800010206000000000000" + "01", // reset register and value
		244: "010800010006000000000000",        // sleep control
		256: "010800010106000000000000",        // sleep status
	} {
		if got := hex.EncodeToString(f[offset:][:len(want)/2]); got != want {
			t.Errorf("FADT at %d: %s, want %s", offset, got, want)
		}
	}
	wantMADT := "0000e0fe" + "00000000" +
		"0008000001000000" + "0008010101000000" +
		"010c00000000c0fe00000000"
	if got := hex.EncodeToString(m[36:]); got != wantMADT {
		t.Errorf("MADT body is %s, want %s", got, wantMADT)
	}
}

func TestDSDTBytes(t *testing.T) {
	got := dsdt(Platform{Serial: true, Virtio: []VirtioWindow{{0xd0001000, 0x1000, 6}}})
	want := "085f53355f" + "12050" + "20a0500" + // Name (_S5_, Package {5, 0})
		"10" + "4d07" + "5c5f53425f" + // Scope (\_SB_)
		"5b82" + "31" + "434f4d31" + // Device (COM1)
		"085f484944" + "0c41d00501" + // _HID EisaId ("PNP0501")
		"085f554944" + "00" +
		"085f435253" + "11160a13" + // _CRS Buffer (19)
		"4701f803f8030108" + // IO (Decode16, 0x3f8, 0x3f8, 1, 8)
		"89060003" + "0104000000" + // Interrupt (Consumer, Edge, ActiveHigh, Exclusive) {4}
		"7900" +
		"5b82" + "4104" + "56523030" + // Device (VR00)
		"085f484944" + "0d4c4e524f3030303500" + // _HID "LNRO0005"
		"085f554944" + "00" +
		"085f434341" + "01" +
		"085f435253" + "111a0a17" + // _CRS Buffer (23)
		"86090001" + "001000d0" + "00100000" + // Memory32Fixed (ReadWrite, 0xd0001000, 0x1000)
		"89060003" + "0106000000" +
		"7900"
	if sum(got) != 0 {
		t.Errorf("the sum is %d, want 0", sum(got))
	}
	if h := hex.EncodeToString(got[acpiHeaderLen:]); h != want {
		t.Errorf("DSDT body is\n%s, want\n%s", h, want)
	}
}

func TestPackageLength(t *testing.T) {
	for n, want := range map[int]string{
		0: "01", 62: "3f", 63: "4104", 4093: "4fff", 4094: "810001", 1<<20 - 4: "8fffff", 1<<20 - 3: "c1000001",
	} {
		if got := hex.EncodeToString(pkgLength(n)); got != want {
			t.Errorf("pkgLength(%d) is %s, want %s", n, got, want)
		}
	}
}

func TestIntegers(t *testing.T) {
	for v, want := range map[uint32]string{0: "00", 1: "01", 2: "0a02", 0xff: "0aff", 0x100: "0b0001", 0x10000: "0c00000100"} {
		if got := hex.EncodeToString(amlInt(v)); got != want {
			t.Errorf("amlInt(%#x) is %s, want %s", v, got, want)
		}
	}
}

func TestTooManyTablesAreRefused(t *testing.T) {
	p := Platform{VCPUs: 1}
	for i := range uint32(3000) {
		p.Virtio = append(p.Virtio, VirtioWindow{0xd0000000 + i<<12, 0x1000, i})
	}
	if err := writeACPI(make(ram, testRAM), p); err == nil || !strings.Contains(err.Error(), "DSDT does not fit") {
		t.Errorf("error is %v", err)
	}
}
