package chipset

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
)

// recorded is an IOAPIC and the messages it has sent.
type recorded struct {
	*IOAPIC
	sent []Message
}

func newRecorded() *recorded {
	r := new(recorded)
	r.IOAPIC = NewIOAPIC(func(m Message) error { r.sent = append(r.sent, m); return nil })
	return r
}

func (r *recorded) writeReg(t *testing.T, index, v uint32) {
	t.Helper()
	for _, w := range []struct {
		offset uint64
		v      uint32
	}{{ioapicSelect, index}, {ioapicWindow, v}} {
		if err := r.Write(w.offset, binary.LittleEndian.AppendUint32(nil, w.v)); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *recorded) readReg(t *testing.T, index uint32) uint32 {
	t.Helper()
	if err := r.Write(ioapicSelect, binary.LittleEndian.AppendUint32(nil, index)); err != nil {
		t.Fatal(err)
	}
	var p [4]byte
	r.Read(ioapicWindow, p[:])
	return binary.LittleEndian.Uint32(p[:])
}

func TestIOAPICRegisters(t *testing.T) {
	r := newRecorded()
	if got := r.readReg(t, indexVersion); got != 0x170011 {
		t.Errorf("version is %#x, want 24 pins of version 0x11", got)
	}
	r.writeReg(t, indexID, 0xffffffff)
	if got := r.readReg(t, indexID); got != 0x0f000000 {
		t.Errorf("ID is %#x", got)
	}
	for pin := range uint32(IOAPICPins) {
		if got := r.readReg(t, indexRedirection+2*pin); got != rteMasked {
			t.Errorf("pin %d starts as %#x, want masked", pin, got)
		}
	}
	r.writeReg(t, indexRedirection+2*23, 0xffffffff)
	if got := r.readReg(t, indexRedirection+2*23); got != 0xffffffff&^rteReadOnly {
		t.Errorf("entry is %#x: read-only bits were written", got)
	}
	for _, beyond := range []uint32{indexRedirection + 2*IOAPICPins, 0xff} {
		r.writeReg(t, beyond, 1)
		if got := r.readReg(t, beyond); got != 0 {
			t.Errorf("register %#x is %#x, want 0", beyond, got)
		}
	}
}

func TestIOAPICMessages(t *testing.T) {
	for name, c := range map[string]struct {
		low, high uint32
		want      Message
	}{
		"fixed, physical, CPU 1":   {0x0031, 1 << 24, Message{0xfee01000, 0x4031}},
		"fixed, logical, all":      {0x0831, 0xff << 24, Message{0xfeeff004, 0x4031}},
		"lowest priority, logical": {0x0931, 3 << 24, Message{0xfee03004, 0x4131}},
		"level-triggered":          {0x8031, 0, Message{0xfee00000, 0xc031}},
	} {
		r := newRecorded()
		r.writeReg(t, indexRedirection+2*5+1, c.high)
		r.writeReg(t, indexRedirection+2*5, c.low)
		if err := r.Assert(5); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.sent, []Message{c.want}) {
			t.Errorf("%s: sent %#x, want %#x", name, r.sent, c.want)
		}
	}
}

func TestMaskedEdgeIsKeptUntilUnmasked(t *testing.T) {
	r := newRecorded()
	for range 3 {
		if err := r.Assert(7); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.sent) != 0 {
		t.Fatalf("a masked pin sent %v", r.sent)
	}
	saved := newRecorded()
	if err := saved.Restore(r.Save(nil)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // once only, whatever is written
		saved.writeReg(t, indexRedirection+2*7, 0x41)
	}
	if want := []Message{{0xfee00000, 0x4041}}; !reflect.DeepEqual(saved.sent, want) {
		t.Errorf("sent %#x after unmasking, want %#x", saved.sent, want)
	}
}

func TestIOAPICReportsDeliveryErrors(t *testing.T) {
	broken := errors.New("no such CPU")
	a := NewIOAPIC(func(Message) error { return broken })
	a.Redirection[3] = 0x50
	if err := a.Assert(3); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
}

func TestIOAPICIgnoresOddAccesses(t *testing.T) {
	r := newRecorded()
	for _, n := range []int{0, 1, 2, 8} {
		p := make([]byte, n)
		for i := range p {
			p[i] = 0xff
		}
		if err := r.Write(ioapicWindow, p); err != nil {
			t.Fatal(err)
		}
		r.Read(ioapicWindow, p)
		for _, v := range p {
			if v != 0 {
				t.Errorf("a read of %d bytes gives %x", n, p)
			}
		}
	}
}

func TestIOAPICRefusesOddState(t *testing.T) {
	if err := newRecorded().Restore(make([]byte, ioapicStateBytes-1)); err == nil {
		t.Error("a state that is too short was accepted")
	}
}

func TestPowerRegisters(t *testing.T) {
	for _, c := range []struct {
		port uint16
		v    byte
		want Event
	}{
		{KeyboardPort, 0xfe, Reset},
		{KeyboardPort, 0xfd, NoEvent},
		{ResetPort, ResetValue, Reset},
		{ResetPort, 0, NoEvent},
		{SleepControlPort, 5<<2 | 1<<5, PowerOff},
		{SleepControlPort, 5 << 2, NoEvent},
		{SleepControlPort, 3<<2 | 1<<5, NoEvent},
		{0x80, 0xfe, NoEvent},
	} {
		if got := WritePower(c.port, c.v); got != c.want {
			t.Errorf("writing %#x to port %#x: event %d, want %d", c.v, c.port, got, c.want)
		}
	}
}
