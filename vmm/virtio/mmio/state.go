package mmio

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cella.dev/cella/vmm/virtio"
)

// stateVersion is the first byte of a saved transport.
const stateVersion = 1

// header is the fixed part of the saved state, little endian; queues and the device's own state follow.
type header struct {
	Version        uint8
	Queues         uint8
	Type           uint32
	Status         uint32
	Interrupts     uint32
	DeviceSel      uint32
	DriverSel      uint32
	QueueSel       uint32
	DriverFeatures uint64
}

// Save returns registers, queues and the device's state as of one instant. vCPUs are stopped by then;
// requests that the device has begun are finished first.
func (t *Transport) Save() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dev, err := t.dev.Save()
	if err != nil {
		return nil, fmt.Errorf("save virtio device of type %d: %w", t.dev.Type(), err)
	}
	h := header{Version: stateVersion, Queues: uint8(len(t.configs)), Type: t.dev.Type(), Status: t.status,
		Interrupts: t.interrupts.Load(), DeviceSel: t.deviceSel, DriverSel: t.driverSel, QueueSel: t.queueSel,
		DriverFeatures: t.driverFeatures}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil {
		return nil, fmt.Errorf("encode virtio-mmio state: %w", err)
	}
	if b, err = binary.Append(b, binary.LittleEndian, t.queueStates()); err != nil {
		return nil, fmt.Errorf("encode virtqueue state: %w", err)
	}
	return append(b, dev...), nil
}

func (t *Transport) queueStates() []virtio.QueueState {
	states := make([]virtio.QueueState, len(t.configs))
	for i, c := range t.configs {
		states[i].QueueConfig = c
		if t.queues != nil {
			states[i] = t.queues[i].State()
		}
	}
	return states
}

// Restore takes back what Save returned, into a transport fresh from New. A device that was active is
// activated; guest memory must hold its content of the same instant. No interrupt is raised before Kick.
func (t *Transport) Restore(state []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status != 0 {
		return errors.New("restore virtio-mmio: the transport is in use")
	}
	var h header
	n, err := binary.Decode(state, binary.LittleEndian, &h)
	if err != nil {
		return fmt.Errorf("restore virtio-mmio: header: %w", err)
	}
	if err := t.check(h); err != nil {
		return fmt.Errorf("restore virtio-mmio: %w", err)
	}
	state = state[n:]
	states := make([]virtio.QueueState, len(t.configs))
	if n, err = binary.Decode(state, binary.LittleEndian, states); err != nil {
		return fmt.Errorf("restore virtio-mmio: queues: %w", err)
	}
	if err := t.dev.Restore(state[n:]); err != nil {
		return fmt.Errorf("restore virtio device of type %d: %w", h.Type, err)
	}
	t.adopt(h, states)
	if h.Status&statusDriverOK == 0 || t.broken {
		return nil
	}
	if err := t.activate(states); err != nil {
		return fmt.Errorf("activate restored virtio device of type %d: %w", h.Type, err)
	}
	return nil
}

func (t *Transport) check(h header) error {
	switch {
	case h.Version != stateVersion:
		return fmt.Errorf("state has version %d, this build reads %d", h.Version, stateVersion)
	case h.Type != t.dev.Type():
		return fmt.Errorf("state is of device type %d, not %d", h.Type, t.dev.Type())
	case int(h.Queues) != len(t.configs):
		return fmt.Errorf("state has %d queues, the device %d", h.Queues, len(t.configs))
	case h.DriverFeatures&^t.offered() != 0 && h.Status&statusFeaturesOK != 0:
		return fmt.Errorf("the guest uses features %#x that the device does not offer",
			h.DriverFeatures&^t.offered())
	}
	return nil
}

func (t *Transport) adopt(h header, states []virtio.QueueState) {
	t.status, t.driverFeatures = h.Status, h.DriverFeatures
	t.deviceSel, t.driverSel, t.queueSel = h.DeviceSel, h.DriverSel, h.QueueSel
	t.interrupts.Store(h.Interrupts)
	t.broken = h.Status&statusNeedsReset != 0
	for i, s := range states {
		t.configs[i] = s.QueueConfig
	}
}

// Kick makes up for what a snapshot may have cut off. It raises a pending interrupt again, and processes
// every queue once, because a notification may have been on its way. Call it when the guest may run again.
func (t *Transport) Kick() {
	l := (*guard)(t)
	l.Lock()
	t.raise |= t.interrupts.Load()
	for i := range t.queues {
		t.notify(i)
	}
	l.Unlock()
}
