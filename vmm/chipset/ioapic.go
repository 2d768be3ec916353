package chipset

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Registers of an 82093AA IOAPIC: an index register selects what the window register accesses.
const (
	ioapicSelect = 0x00
	ioapicWindow = 0x10

	indexID          = 0x00
	indexVersion     = 0x01
	indexArbitration = 0x02
	indexRedirection = 0x10

	ioapicVersion = 0x11 | (IOAPICPins-1)<<16

	// Bits of a redirection entry. Delivery status and remote IRR are read-only: interrupts are delivered
	// at once, and edge-triggered ones have no remote IRR.
	rteReadOnly = 1<<12 | 1<<14
	rteMasked   = 1 << 16
	rteLevel    = 1 << 15
)

// Message is an interrupt message on the system bus (Intel SDM vol. 3 §11.11).
type Message struct {
	Address uint32
	Data    uint32
}

// IOAPIC turns interrupt lines into messages as the guest's redirection table says. It lives in user space
// so that KVM need not put an IOAPIC and a PIC on its bus and need not be told of routes, each of which costs
// an SRCU grace period. All of this board's interrupts are edge-triggered.
type IOAPIC struct {
	deliver func(Message) error

	mu sync.Mutex // guards what follows; taken by vCPUs and by device goroutines
	IOAPICState
}

// NewIOAPIC makes an IOAPIC with all pins masked. deliver may be called from any goroutine.
func NewIOAPIC(deliver func(Message) error) *IOAPIC {
	a := &IOAPIC{deliver: deliver}
	for i := range a.Redirection {
		a.Redirection[i] = rteMasked
	}
	return a
}

// Assert raises an edge on a pin. An edge on a masked pin is kept until the pin is unmasked: Linux masks a
// pin while it moves an interrupt to another CPU.
func (a *IOAPIC) Assert(pin int) error {
	a.mu.Lock()
	rte := a.Redirection[pin]
	if rte&rteMasked != 0 {
		a.Pending |= 1 << pin
		a.mu.Unlock()
		return nil
	}
	a.mu.Unlock()
	return a.send(pin, rte)
}

func (a *IOAPIC) send(pin int, rte uint64) error {
	if err := a.deliver(message(rte)); err != nil {
		return fmt.Errorf("interrupt on IOAPIC pin %d: %w", pin, err)
	}
	return nil
}

// message is the interrupt message of a redirection entry.
func message(rte uint64) Message {
	dest, logical := uint32(rte>>56), uint32(rte>>11)&1
	return Message{
		Address: LAPICBase | dest<<12 | logical<<2,
		// Vector and delivery mode are where the message has them; the level bit means "assert".
		Data: uint32(rte&0x7ff) | 1<<14 | uint32(rte&rteLevel),
	}
}

// Read reads p from an offset from IOAPICBase. Only aligned 32-bit accesses are defined; others give zeros.
func (a *IOAPIC) Read(offset uint64, p []byte) {
	clear(p)
	if len(p) != 4 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch offset {
	case ioapicSelect:
		binary.LittleEndian.PutUint32(p, a.Select)
	case ioapicWindow:
		binary.LittleEndian.PutUint32(p, a.readWindow())
	}
}

func (a *IOAPIC) readWindow() uint32 {
	switch a.Select {
	case indexID, indexArbitration:
		return a.ID
	case indexVersion:
		return ioapicVersion
	}
	pin, high, ok := a.selected()
	if !ok {
		return 0
	}
	if high {
		return uint32(a.Redirection[pin] >> 32)
	}
	return uint32(a.Redirection[pin])
}

// selected is the redirection entry that the index register selects, and which half of it.
func (a *IOAPIC) selected() (pin int, high, ok bool) {
	i := int(a.Select) - indexRedirection
	return i / 2, i&1 == 1, i >= 0 && i < 2*IOAPICPins
}

// Write writes p at an offset from IOAPICBase. The error is that of the delivery of an interrupt that had
// waited for the pin to be unmasked.
func (a *IOAPIC) Write(offset uint64, p []byte) error {
	if len(p) != 4 {
		return nil
	}
	v := binary.LittleEndian.Uint32(p)
	a.mu.Lock()
	pin, due := -1, uint64(0)
	switch offset {
	case ioapicSelect:
		a.Select = v & 0xff
	case ioapicWindow:
		pin, due = a.writeWindow(v)
	}
	a.mu.Unlock()
	if pin < 0 {
		return nil
	}
	return a.send(pin, due)
}

// writeWindow returns the pin whose kept edge is due now with its entry, or -1.
func (a *IOAPIC) writeWindow(v uint32) (int, uint64) {
	if a.Select == indexID {
		a.ID = v & 0x0f000000
		return -1, 0
	}
	pin, high, ok := a.selected()
	if !ok {
		return -1, 0
	}
	rte := a.Redirection[pin]
	if high {
		rte = rte&0xffffffff | uint64(v)<<32
	} else {
		rte = rte&^0xffffffff | uint64(v&^rteReadOnly)
	}
	a.Redirection[pin] = rte
	if rte&rteMasked == 0 && a.Pending&(1<<pin) != 0 {
		a.Pending &^= 1 << pin
		return pin, rte
	}
	return -1, 0
}
