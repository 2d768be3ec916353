package chipset

import (
	"bytes"
	"testing"
)

func TestSerialWritesByLines(t *testing.T) {
	var out bytes.Buffer
	s := NewSerial(&out, nil)
	for _, b := range []byte("one\ntw") {
		s.Write(regData, b)
	}
	if out.String() != "one\n" {
		t.Errorf("written before the line ends: %q, want only the first line", out.String())
	}
	s.Flush()
	if out.String() != "one\ntw" {
		t.Errorf("written after Flush: %q", out.String())
	}
	out.Reset()
	long := bytes.Repeat([]byte{'x'}, lineBufferBytes)
	for _, b := range long {
		s.Write(regData, b)
	}
	if !bytes.Equal(out.Bytes(), long) {
		t.Errorf("%d bytes of a line without end were written, want %d", out.Len(), len(long))
	}
}

// TestSerialInterrupts follows Linux's test of the transmitter interrupt: enabling it while the transmitter
// is empty raises it, each time.
func TestSerialInterrupts(t *testing.T) {
	n := 0
	s := NewSerial(&bytes.Buffer{}, func() { n++ })
	steps := []struct {
		do   func() byte
		want byte
		irqs int
	}{
		{func() byte { s.Write(regIER, ierTHRE); return s.Read(regIIR) }, iirTHRE, 1},
		{func() byte { return s.Read(regIIR) }, iirNone, 1},
		{func() byte { s.Write(regIER, 0); s.Write(regIER, ierTHRE); return s.Read(regIIR) }, iirTHRE, 2},
		{func() byte { s.Write(regData, 'x'); return s.Read(regIIR) }, iirTHRE, 3},
		{func() byte { s.Write(regIER, 0); s.Write(regData, 'x'); return s.Read(regIIR) }, iirNone, 3},
		{func() byte { s.Write(regIIR, fcrFIFO); return s.Read(regIIR) }, iirNone | iirFIFO, 3},
	}
	for i, c := range steps {
		if got := c.do(); got != c.want || n != c.irqs {
			t.Errorf("step %d: IIR is %#x after %d interrupts, want %#x after %d", i, got, n, c.want, c.irqs)
		}
	}
}

func TestSerialRegisters(t *testing.T) {
	s := NewSerial(&bytes.Buffer{}, nil)
	s.Write(regLCR, lcrDLAB|3)
	s.Write(regData, 0x12)
	s.Write(regIER, 0x34)
	for offset, want := range map[uint16]byte{regData: 0x12, regIER: 0x34, regLCR: lcrDLAB | 3, regLSR: lsrIdle} {
		if got := s.Read(offset); got != want {
			t.Errorf("with DLAB, register %d is %#x, want %#x", offset, got, want)
		}
	}
	s.Write(regLCR, 3)
	s.Write(regScr, 0xa5)
	s.Write(regMCR, mcrLoop|0x0a) // Linux's loopback test: RTS and OUT2 come back as CTS and DCD
	for offset, want := range map[uint16]byte{regData: 0, regIER: 0, regScr: 0xa5, regMSR: 0x90} {
		if got := s.Read(offset); got != want {
			t.Errorf("without DLAB, register %d is %#x, want %#x", offset, got, want)
		}
	}
}

func TestSerialStateComesBack(t *testing.T) {
	want := SerialState{DivisorLow: 1, DivisorHigh: 2, IER: 3, LCR: 4, MCR: 5, Scratch: 6, FIFO: true, TransmitPending: true}
	var got SerialState
	if err := got.UnmarshalBinary(want.AppendBinary(nil)); err != nil || got != want {
		t.Errorf("state is %+v (%v), want %+v", got, err, want)
	}
	if err := got.UnmarshalBinary([]byte{1}); err == nil {
		t.Error("a state of one byte was accepted")
	}
}
