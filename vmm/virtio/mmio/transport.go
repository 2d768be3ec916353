// Package mmio is the virtio-mmio transport, version 2 (virtio 1.2 §4.2): registers, feature negotiation,
// queue set-up, interrupts, and the saved state of all of it with its device.
//
//	vCPU exit ─ Read/Write ─┐
//	ioeventfd ─── Notify ───┼─ lock ─ Device ─ Queues ─ guest memory
//	device's own goroutine ─┘   └ on unlock: interrupt, DEVICE_NEEDS_RESET
package mmio

import (
	"errors"
	"sync"
	"sync/atomic"

	"cella.dev/cella/vmm/virtio"
)

// Stats count what should not happen often. All fields may be read at any time.
type Stats struct {
	Notifies   atomic.Uint64 // queue notifications taken
	Interrupts atomic.Uint64 // interrupts raised
	BadAccess  atomic.Uint64 // register accesses that the specification doesn't allow
	Malformed  atomic.Uint64 // times a ring was malformed and the device asked for a reset
	IRQErrors  atomic.Uint64 // interrupts that couldn't be raised
}

// Transport is one virtio-mmio device.
type Transport struct {
	mem virtio.Memory
	dev virtio.Device
	irq virtio.Interrupt

	// Stats may be read at any time.
	Stats Stats

	// interrupts is InterruptStatus. It is read and acknowledged without the lock, so the guest's
	// interrupt handler never waits for a request that the device is working on.
	interrupts atomic.Uint32

	// mu guards everything below, the device and its queues.
	mu             sync.Mutex
	raise          uint32 // interrupt bits to set when mu is released
	status         uint32
	deviceSel      uint32
	driverSel      uint32
	queueSel       uint32
	driverFeatures uint64
	configs        []virtio.QueueConfig
	queues         []*virtio.Queue // of an active device, else nil
	broken         bool            // a queue's error has been reported
	paused         bool            // the machine stands still: nobody but Save and Restore takes the lock
	resumed        *sync.Cond      // paused became false
	closed         bool            // guest memory may be gone
}

// New returns a transport for dev in its reset state.
func New(mem virtio.Memory, dev virtio.Device, irq virtio.Interrupt) *Transport {
	t := &Transport{mem: mem, dev: dev, irq: irq, configs: make([]virtio.QueueConfig, len(dev.QueueSizes()))}
	t.resumed = sync.NewCond(&t.mu)
	return t
}

// QueueCount is how many queues the device has.
func (t *Transport) QueueCount() int { return len(t.configs) }

// Notify tells the device that the guest made buffers available on a queue. Notifications of an inactive
// device or an unknown queue are ignored.
func (t *Transport) Notify(queue int) {
	t.Stats.Notifies.Add(1)
	l := (*guard)(t)
	l.Lock()
	defer l.Unlock()
	t.notify(queue)
}

func (t *Transport) notify(queue int) {
	if t.queues == nil || queue < 0 || queue >= len(t.queues) || t.broken {
		return
	}
	t.dev.Notify(queue)
}

// Pause keeps the device's own goroutines from queues and guest memory until Resume: when it returns, what
// they had begun under the lock is done. Save works while paused; the machine's vCPUs are stopped by then.
func (t *Transport) Pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = true
}

// Resume ends Pause. It does nothing on a transport that is not paused.
func (t *Transport) Resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = false
	t.resumed.Broadcast()
}

// Close ends the device: it is reset, whether paused or not, and when Close returns neither it nor the transport
// touches guest memory any more. What waits for Resume goes on and finds the device inactive.
func (t *Transport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
	t.closed = true
	t.paused = false
	t.resumed.Broadcast()
}

// guard is the transport's lock as all who touch queues take it: whoever releases it raises the interrupts
// that the critical section asked for, in one go, and after the lock is free.
type guard Transport

// Lock takes the lock. It waits while the machine is paused.
func (g *guard) Lock() {
	g.mu.Lock()
	for g.paused {
		g.resumed.Wait()
	}
}

// Unlock settles the critical section and releases the lock.
func (g *guard) Unlock() {
	t := (*Transport)(g)
	t.reportBroken()
	raise := t.raise
	t.raise = 0
	if raise != 0 {
		t.interrupts.Or(raise)
	}
	t.mu.Unlock()
	if raise != 0 {
		t.signal()
	}
}

func (t *Transport) signal() {
	t.Stats.Interrupts.Add(1)
	if err := t.irq.Signal(); err != nil {
		t.Stats.IRQErrors.Add(1)
	}
}

// interrupt is Backend.Interrupt. The caller holds the lock.
func (t *Transport) interrupt(queue int) {
	if queue >= 0 && queue < len(t.queues) && t.queues[queue].NeedsInterrupt() {
		t.raise |= interruptUsed
	}
}

// reportBroken turns a queue's error into DEVICE_NEEDS_RESET, once (virtio 1.2 §2.1.2).
func (t *Transport) reportBroken() {
	if t.broken {
		return
	}
	for _, q := range t.queues {
		if q.Err() != nil {
			t.needsReset()
			return
		}
	}
}

func (t *Transport) needsReset() {
	t.broken = true
	t.Stats.Malformed.Add(1)
	t.status |= statusNeedsReset
	t.raise |= interruptConfig
}

// Err says why the device asks the driver for a reset, or nil.
func (t *Transport) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.queues {
		if err := q.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Active reports whether the driver has set DRIVER_OK and the device works.
func (t *Transport) Active() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queues != nil
}

// offered are all feature bits the driver may take.
func (t *Transport) offered() uint64 {
	return t.dev.Features() | virtio.FeatureVersion1 | virtio.FeatureEventIdx | virtio.FeatureIndirectDesc
}

// errClosed is why a closed transport can't activate its device.
var errClosed = errors.New("the transport is closed")

// activate builds the queues from states and hands them to the device.
func (t *Transport) activate(states []virtio.QueueState) error {
	if t.closed {
		return errClosed
	}
	queues := make([]*virtio.Queue, len(states))
	for i, s := range states {
		q, err := virtio.NewQueue(t.mem, s, t.driverFeatures)
		if err != nil {
			return err
		}
		queues[i] = q
	}
	t.queues = queues
	err := t.dev.Activate(virtio.Backend{Mem: t.mem, Queues: queues, Features: t.driverFeatures,
		Interrupt: t.interrupt, Lock: (*guard)(t)})
	if err != nil {
		t.queues = nil
	}
	return err
}

// reset returns to the state after New (virtio 1.2 §4.2.3.1).
func (t *Transport) reset() {
	t.dev.Reset()
	t.queues = nil
	t.broken = false
	t.raise, t.status = 0, 0
	t.deviceSel, t.driverSel, t.queueSel, t.driverFeatures = 0, 0, 0, 0
	clear(t.configs)
	t.interrupts.Store(0)
}
