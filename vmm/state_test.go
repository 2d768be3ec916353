package vmm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"

	"cella.dev/cella/vmm/kvm"
)

func testState() *State {
	s := &State{
		MemoryBytes: 128 << 20, TSCKHz: 2_100_000, ClockNanos: 1 << 40,
		CPU:    CPUModel{Vendor: [12]byte([]byte("GenuineIntel")), Family: 6, Model: 0x8f},
		IOAPIC: []byte{1, 2, 3}, Serial: []byte{4}, Devices: [][]byte{{5, 6}, {}},
	}
	for i := range 2 {
		c := VCPUState{MP: kvm.MPHalted, XSave: bytes.Repeat([]byte{byte(i)}, 4096)}
		c.Regs.RIP, c.Sregs.CR3, c.Events.NMIMasked, c.DebugRegs.DR7 = 0x1000, 0x2000, 1, 0x400
		c.XCRs.Count, c.LAPIC.Regs[1023] = 1, 9
		c.MSRs = []kvm.MSREntry{{Index: msrTSC, Data: 77}, {Index: msrTSCDeadline, Data: 78}}
		c.CPUID = []kvm.CPUIDEntry{{Function: 1, EBX: uint32(i) << 24}}
		s.VCPUs = append(s.VCPUs, c)
	}
	return s
}

func encode(t testing.TB, s *State) []byte {
	t.Helper()
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// seal makes the length and the checksum of a changed encoding right.
func seal(b []byte) []byte {
	le := binary.LittleEndian
	le.PutUint32(b[len(stateMagic)+4:], uint32(len(b)))
	end := len(b) - stateTrailerLen
	le.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
	return b
}

func TestStateComesBack(t *testing.T) {
	want := testState()
	b := encode(t, want)
	var got State
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	clear(b) // the state must not depend on the encoding any more
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("state is %+v, want %+v", got, want)
	}
}

func TestStateHeaderBytes(t *testing.T) {
	b := encode(t, testState())
	want := append([]byte("CELLAVM\n"), 1, 0, 0, 0)
	want = binary.LittleEndian.AppendUint32(want, uint32(len(b)))
	want = append(want, 1, 0, 0, 0, machineLen, 0, 0, 0)
	if !bytes.HasPrefix(b, want) {
		t.Errorf("the encoding starts with % x, want % x", b[:len(want)], want)
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	b := encode(t, testState())
	for n := range b {
		var s State
		var se *StateError
		if err := s.UnmarshalBinary(b[:n]); !errors.As(err, &se) {
			t.Fatalf("%d of %d bytes: %v, want a StateError", n, len(b), err)
		}
	}
}

func TestEveryFlippedByteIsRefused(t *testing.T) {
	b := encode(t, testState())
	for i := range b {
		b[i] ^= 0x40
		var s State
		if s.UnmarshalBinary(b) == nil {
			t.Fatalf("a change of byte %d went unnoticed", i)
		}
		b[i] ^= 0x40
	}
}

func TestStateErrorsNameField(t *testing.T) {
	le := binary.LittleEndian
	machine := stateHeaderLen + sectionHeadLen
	mp := machine + machineLen
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		field  string
	}{
		"another file":       {func(b []byte) []byte { b[0] = 'X'; return b }, "magic"},
		"a newer format":     {func(b []byte) []byte { b[8] = 2; return b }, "format version"},
		"an older format":    {func(b []byte) []byte { b[8] = 0; return b }, "format version"},
		"appended bytes":     {func(b []byte) []byte { return append(b, 0) }, "total length"},
		"a flipped bit":      {func(b []byte) []byte { b[machine] ^= 1; return b }, "checksum"},
		"no vCPU":            {func(b []byte) []byte { le.PutUint32(b[machine+40:], 0); return seal(b) }, "vCPUs"},
		"65 vCPUs":           {func(b []byte) []byte { le.PutUint32(b[machine+40:], 65); return seal(b) }, "vCPUs"},
		"many devices":       {func(b []byte) []byte { le.PutUint32(b[machine+44:], 1<<31); return seal(b) }, "devices"},
		"a missing vCPU":     {func(b []byte) []byte { le.PutUint32(b[machine+40:], 3); return seal(b) }, "MP state"},
		"a vCPU too many":    {func(b []byte) []byte { le.PutUint32(b[machine+40:], 1); return seal(b) }, "MP state"},
		"a long section":     {func(b []byte) []byte { le.PutUint32(b[mp+4:], 1<<31); return seal(b) }, "MP state"},
		"an unknown section": {func(b []byte) []byte { b[mp] = 99; return seal(b) }, "kind 99"},
		"a section twice":    {func(b []byte) []byte { b[mp] = byte(sectionMachine); return seal(b) }, "machine"},
		"no machine section": {func(b []byte) []byte { b[stateHeaderLen] = byte(sectionIOAPIC); return seal(b) }, "MP state"},
		"a stray byte":       {func(b []byte) []byte { return seal(append(b, 0)) }, "section header"},
	} {
		t.Run(name, func(t *testing.T) {
			var s State
			var se *StateError
			if err := s.UnmarshalBinary(c.change(encode(t, testState()))); !errors.As(err, &se) || se.Field != c.field {
				t.Errorf("error is %v, want one of field %q", err, c.field)
			}
		})
	}
}

// FuzzState: whatever passes the checksum decodes or is refused, and what decodes encodes to the same state.
func FuzzState(f *testing.F) {
	f.Add(encode(f, testState()))
	f.Add(encode(f, &State{VCPUs: make([]VCPUState, 1)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= stateHeaderLen+stateTrailerLen {
			b = seal(bytes.Clone(b)) // the fuzzer keeps its inputs
		}
		var s, again State
		if s.UnmarshalBinary(b) != nil {
			return
		}
		if err := again.UnmarshalBinary(encode(t, &s)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(encode(t, &s), encode(t, &again)) {
			t.Error("decoding and encoding do not agree")
		}
	})
}

func BenchmarkStateDecode(b *testing.B) {
	enc := encode(b, testState())
	b.SetBytes(int64(len(enc)))
	for b.Loop() {
		var s State
		if err := s.UnmarshalBinary(enc); err != nil {
			b.Fatal(err)
		}
	}
}
