package chipset

import (
	"encoding/binary"
	"fmt"
)

// SerialState is what a serial port remembers.
type SerialState struct {
	DivisorLow, DivisorHigh byte
	IER, LCR, MCR, Scratch  byte
	FIFO                    bool
	// TransmitPending: the transmitter became empty and the guest was not told yet.
	TransmitPending bool
}

const serialStateBytes = 8

// AppendBinary appends the state's encoding, a byte per field.
func (s *SerialState) AppendBinary(b []byte) []byte {
	return append(b, s.DivisorLow, s.DivisorHigh, s.IER, s.LCR, s.MCR, s.Scratch, flag(s.FIFO), flag(s.TransmitPending))
}

// UnmarshalBinary takes back what AppendBinary gave.
func (s *SerialState) UnmarshalBinary(b []byte) error {
	if len(b) != serialStateBytes {
		return fmt.Errorf("serial port state has %d bytes, want %d", len(b), serialStateBytes)
	}
	*s = SerialState{
		DivisorLow: b[0], DivisorHigh: b[1], IER: b[2] & 0x0f, LCR: b[3], MCR: b[4] & 0x1f, Scratch: b[5],
		FIFO: b[6] != 0, TransmitPending: b[7] != 0,
	}
	return nil
}

// IOAPICState is what an IOAPIC remembers.
type IOAPICState struct {
	ID     uint32
	Select uint32
	// Pending has a bit for each masked pin with a kept edge.
	Pending     uint32
	Redirection [IOAPICPins]uint64
}

const ioapicStateBytes = 3*4 + IOAPICPins*8

// Save appends the state's encoding: little-endian, in the order of the fields.
func (a *IOAPIC) Save(b []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range []uint32{a.ID, a.Select, a.Pending} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range a.Redirection {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// Restore takes back what Save gave. It delivers nothing: interrupts that were under way are in the local
// APICs' state, and kept edges wait for their pin to be unmasked.
func (a *IOAPIC) Restore(b []byte) error {
	if len(b) != ioapicStateBytes {
		return fmt.Errorf("IOAPIC state has %d bytes, want %d", len(b), ioapicStateBytes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range []*uint32{&a.ID, &a.Select, &a.Pending} {
		*p = binary.LittleEndian.Uint32(b[4*i:])
	}
	for i := range a.Redirection {
		a.Redirection[i] = binary.LittleEndian.Uint64(b[12+8*i:]) &^ rteReadOnly
	}
	a.Select &= 0xff
	a.Pending &= 1<<IOAPICPins - 1
	return nil
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}
