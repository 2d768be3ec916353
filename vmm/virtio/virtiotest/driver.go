package virtiotest

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// Bus is a device's register window.
type Bus interface {
	Read(offset uint64, p []byte)
	Write(offset uint64, p []byte)
}

// Features the driver takes besides the device's own.
const (
	Indirect = uint64(1) << 28
	EventIdx = uint64(1) << 29
	Version1 = uint64(1) << 32
)

// Driver is a guest's driver of one virtio-mmio device.
type Driver struct {
	Bus    Bus
	Mem    *Memory
	IRQ    *Interrupt
	Queues []*Ring
	// next is where Alloc takes memory.
	next uint64
}

// NewDriver returns a driver whose rings and buffers lie in mem from address base on.
func NewDriver(bus Bus, mem *Memory, irq *Interrupt, base uint64) *Driver {
	return &Driver{Bus: bus, Mem: mem, IRQ: irq, next: base}
}

// Alloc takes n bytes of guest memory, 16-byte aligned.
func (d *Driver) Alloc(n int) uint64 {
	addr := (d.next + 15) &^ 15
	d.next = addr + uint64(n)
	if d.next > uint64(len(d.Mem.RAM)) {
		panic("virtiotest: guest memory exhausted: give the test more")
	}
	return addr
}

// Read32 reads a register.
func (d *Driver) Read32(offset uint64) uint32 {
	var b [4]byte
	d.Bus.Read(offset, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// Write32 writes a register.
func (d *Driver) Write32(offset uint64, v uint32) {
	d.Bus.Write(offset, binary.LittleEndian.AppendUint32(nil, v))
}

// Config reads n bytes of configuration space.
func (d *Driver) Config(offset uint64, n int) []byte {
	b := make([]byte, n)
	d.Bus.Read(0x100+offset, b)
	return b
}

// Offered reads the device's feature bits.
func (d *Driver) Offered() uint64 {
	d.Write32(0x14, 1)
	hi := d.Read32(0x10)
	d.Write32(0x14, 0)
	return uint64(hi)<<32 | uint64(d.Read32(0x10))
}

// Negotiate goes from reset to FEATURES_OK.
func (d *Driver) Negotiate(features uint64) error {
	d.Write32(0x70, 0)
	d.Write32(0x70, 1)
	d.Write32(0x70, 3)
	d.Write32(0x24, 1)
	d.Write32(0x20, uint32(features>>32))
	d.Write32(0x24, 0)
	d.Write32(0x20, uint32(features))
	d.Write32(0x70, 11)
	if s := d.Read32(0x70); s != 11 {
		return fmt.Errorf("status %d after FEATURES_OK for features %#x", s, features)
	}
	return nil
}

// Init initialises the device with the given features and queues of n entries each.
func (d *Driver) Init(features uint64, queues int, n uint16) error {
	if err := d.Negotiate(features); err != nil {
		return err
	}
	d.Queues = nil
	for i := range queues {
		d.Queues = append(d.Queues, d.setUp(i, n, features))
	}
	d.Write32(0x70, 15)
	if s := d.Read32(0x70); s != 15 {
		return fmt.Errorf("status %d after DRIVER_OK", s)
	}
	return nil
}

func (d *Driver) setUp(i int, n uint16, features uint64) *Ring {
	d.Write32(0x30, uint32(i))
	n = min(n, uint16(d.Read32(0x34)))
	r := &Ring{driver: d, index: i, size: n, event: features&EventIdx != 0, indirect: features&Indirect != 0,
		desc: d.Alloc(16 * int(n)), avail: d.Alloc(6 + 2*int(n)), used: d.Alloc(6 + 8*int(n)),
		tables: d.Alloc(int(n) * tableSize)}
	for i := range n {
		r.free = append(r.free, i)
	}
	d.Write32(0x38, uint32(n))
	for j, addr := range [...]uint64{r.desc, r.avail, r.used} {
		d.Write32(0x80+16*uint64(j), uint32(addr))
		d.Write32(0x84+16*uint64(j), uint32(addr>>32))
	}
	d.Write32(0x44, 1)
	return r
}

// Ack takes a waiting interrupt and acknowledges it. It returns the interrupt status.
func (d *Driver) Ack() uint32 {
	s := d.Read32(0x60)
	if s != 0 {
		d.Write32(0x64, s)
	}
	return s
}

// Must fails the test if err is set.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
