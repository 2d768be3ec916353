// Package virtio has virtqueues and what all virtio devices share (virtio 1.2). Devices are pure state
// machines: they take queue notifications and guest memory and know nothing of KVM. Everything in guest
// memory is hostile: lengths and addresses are checked, headers are copied once before use.
package virtio

// Memory is guest RAM as devices see it.
type Memory interface {
	// Bytes returns the guest-physical range [addr, addr+n) as host memory, or an error if any byte of it
	// lies outside RAM. The guest may change these bytes at any time.
	Bytes(addr uint64, n uint32) ([]byte, error)
}

// Interrupt raises the device's interrupt line. It may be called from any goroutine.
type Interrupt interface {
	Signal() error
}

// Device is one virtio device behind a transport. The transport serialises all calls.
type Device interface {
	// Type is the virtio device ID (1 network, 2 block, 4 entropy, 19 vsock).
	Type() uint32
	// Features are the device's own feature bits; the transport adds VERSION_1 and EVENT_IDX.
	Features() uint64
	// QueueSizes gives the maximum size of each queue, in order.
	QueueSizes() []uint16
	// ReadConfig and WriteConfig access the device configuration space; out-of-range reads give zeros.
	ReadConfig(offset uint64, p []byte)
	WriteConfig(offset uint64, p []byte)
	// Activate is called once when the driver sets DRIVER_OK, and after a restore of an active device.
	// The backend stays valid until Reset.
	Activate(b Backend) error
	// Notify says that the guest made buffers available on a queue. A device with much to do releases
	// Backend.Lock and takes it again now and then, so that others get their turn; it may have been reset
	// meanwhile.
	Notify(queue int)
	// Reset returns the device to its state before Activate.
	Reset()
	// Save returns the device's own state (not its queues'), Restore takes it back. The format is the
	// device's own and carries its own version byte.
	Save() ([]byte, error)
	Restore(state []byte) error
}

// Backend is what an activated device works with.
type Backend struct {
	Mem      Memory
	Queues   []*Queue
	Features uint64
	// Interrupt tells the guest that queue has used buffers; it honours EVENT_IDX.
	Interrupt func(queue int)
	// Lock is the transport's lock. A device that works from goroutines of its own holds it while it
	// touches queues or its state, so that a snapshot sees all of it at one instant.
	Lock interface {
		Lock()
		Unlock()
	}
}
