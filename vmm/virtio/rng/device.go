// Package rng is the virtio entropy device (virtio 1.2 §5.4): it fills what the guest offers from the host
// kernel's random number generator, by getrandom(2) straight into guest memory.
package rng

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

const (
	deviceType = 4
	queueSize  = 64
	// maxBytes bounds what one chain gets; the device may write less than was offered (§5.4.6.1). Linux
	// asks for a cache line or a page at a time.
	maxBytes = 4096
	// stateVersion is the whole saved state: the device has none.
	stateVersion = 1
)

// Stats may be read at any time.
type Stats struct {
	Requests, Bytes atomic.Uint64
	// Malformed are chains that offered no room, Errors those getrandom could not fill.
	Malformed, Errors atomic.Uint64
}

// Device is an entropy device. The transport serialises all calls.
type Device struct {
	Stats Stats

	backend virtio.Backend
	active  bool
	chain   virtio.Chain
	iov     [][]byte
}

// New returns an entropy device.
func New() *Device { return &Device{} }

// Type is the virtio device ID of entropy devices.
func (d *Device) Type() uint32 { return deviceType }

// Features has no bits of the device's own.
func (d *Device) Features() uint64 { return 0 }

// QueueSizes offers one queue.
func (d *Device) QueueSizes() []uint16 { return []uint16{queueSize} }

// ReadConfig gives zeros: there is no configuration space.
func (d *Device) ReadConfig(_ uint64, p []byte) { clear(p) }

// WriteConfig ignores writes.
func (d *Device) WriteConfig(uint64, []byte) {}

// Activate takes the queue.
func (d *Device) Activate(b virtio.Backend) error {
	d.backend, d.active = b, true
	return nil
}

// Reset forgets the queue.
func (d *Device) Reset() {
	d.backend, d.active = virtio.Backend{}, false
	d.chain = virtio.Chain{}
}

// Save returns the version alone.
func (d *Device) Save() ([]byte, error) { return []byte{stateVersion}, nil }

// Restore checks the version.
func (d *Device) Restore(state []byte) error {
	if len(state) != 1 || state[0] != stateVersion {
		return fmt.Errorf("entropy device state %x is not version %d", state, stateVersion)
	}
	return nil
}

// Notify fills every chain that waits, each with at most 4 KiB.
func (d *Device) Notify(int) {
	if !d.active {
		return
	}
	q := d.backend.Queues[0]
	for {
		for q.Pop(&d.chain) {
			q.Push(&d.chain, d.fill(&d.chain))
		}
		if !q.Rearm() {
			break
		}
	}
	d.backend.Interrupt(0)
}

// fill returns how many random bytes it put at the start of the chain.
func (d *Device) fill(c *virtio.Chain) uint32 {
	d.Stats.Requests.Add(1)
	if c.InLen() == 0 {
		d.Stats.Malformed.Add(1)
		return 0
	}
	d.iov = virtio.Slice(d.iov[:0], c.In, 0, maxBytes)
	var done uint32
	for _, b := range d.iov {
		for len(b) > 0 {
			n, err := unix.Getrandom(b, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				d.Stats.Errors.Add(1)
				return done
			}
			b, done = b[n:], done+uint32(n)
		}
	}
	d.Stats.Bytes.Add(uint64(done))
	return done
}
