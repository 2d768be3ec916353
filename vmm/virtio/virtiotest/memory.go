// Package virtiotest has a guest's side of virtio for tests: memory, a driver that speaks virtio-mmio
// registers and writes real split rings, and an interrupt line to wait on. It shares no code with the
// devices' side, so that both can't be wrong in the same way.
package virtiotest

import (
	"fmt"
	"sync/atomic"
)

// Memory is guest RAM from address 0 in one piece.
type Memory struct {
	RAM []byte
	// Populated counts calls of Populate.
	Populated atomic.Uint64
}

// NewMemory returns n bytes of zeroed RAM.
func NewMemory(n int) *Memory { return &Memory{RAM: make([]byte, n)} }

// Bytes implements virtio.Memory.
func (m *Memory) Bytes(addr uint64, n uint32) ([]byte, error) {
	if addr > uint64(len(m.RAM)) || uint64(n) > uint64(len(m.RAM))-addr {
		return nil, fmt.Errorf("[%#x, +%#x) is not RAM", addr, n)
	}
	return m.RAM[addr : addr+uint64(n) : addr+uint64(n)], nil
}

// Populate implements virtio.Populator.
func (m *Memory) Populate(addr uint64, n uint32) error {
	m.Populated.Add(1)
	_, err := m.Bytes(addr, n)
	return err
}

// Interrupt is an edge-triggered interrupt line.
type Interrupt struct {
	// C holds an edge that nobody has taken yet.
	C     chan struct{}
	Count atomic.Uint64
}

// NewInterrupt returns a line without an edge.
func NewInterrupt() *Interrupt { return &Interrupt{C: make(chan struct{}, 1)} }

// Signal implements virtio.Interrupt.
func (i *Interrupt) Signal() error {
	i.Count.Add(1)
	select {
	case i.C <- struct{}{}:
	default:
	}
	return nil
}
