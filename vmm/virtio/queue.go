package virtio

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxQueueSize is the largest queue a device may offer. It also bounds a descriptor chain.
const MaxQueueSize = 256

// Feature bits that concern queues and the transport (virtio 1.2 §6).
const (
	FeatureIndirectDesc = 1 << 28
	FeatureEventIdx     = 1 << 29
	FeatureVersion1     = 1 << 32
)

// ErrMalformed is wrapped by every error that a driver's ring caused. The transport answers it with
// DEVICE_NEEDS_RESET.
var ErrMalformed = errors.New("malformed virtqueue")

// QueueConfig is what the driver said about one queue.
type QueueConfig struct {
	Size  uint16 // entries, a power of two
	Ready bool
	// Guest-physical addresses of the descriptor table, the available ring and the used ring.
	Desc, Avail, Used uint64
}

// QueueState is a queue at an instant when no chain is in flight.
type QueueState struct {
	QueueConfig
	// NextAvail is the available-ring index that is taken next; NextUsed the used-ring index that is filled
	// next; Signalled is NextUsed as of the last decision whether to interrupt.
	NextAvail, NextUsed, Signalled uint16
}

// Queue is the device's side of one split virtqueue (virtio 1.2 §2.7). The transport's lock guards it.
//
// A device works like this, and so loses no notification and takes few:
//
//	for {
//		for q.Pop(&chain) { ...; q.Push(&chain, n) }
//		if !q.Rearm() { break }
//	}
//	backend.Interrupt(queue)
type Queue struct {
	mem      Memory
	cfg      QueueConfig
	eventIdx bool

	// The rings as host memory, resolved once. availOff is 0 or 2: the available ring needs an alignment
	// of 2 only, and avail starts at the 4-byte boundary before it.
	desc, avail, used []byte
	availOff          int

	nextAvail, nextUsed, signalled uint16 // see QueueState

	err error
}

// NewQueue resolves a queue's rings in guest memory. A queue that isn't ready is valid and always empty.
// features are those negotiated.
func NewQueue(mem Memory, s QueueState, features uint64) (*Queue, error) {
	q := &Queue{mem: mem, cfg: s.QueueConfig, eventIdx: features&FeatureEventIdx != 0,
		nextAvail: s.NextAvail, nextUsed: s.NextUsed, signalled: s.Signalled}
	if !s.Ready {
		return q, nil
	}
	if err := q.resolve(); err != nil {
		return nil, err
	}
	if !q.eventIdx {
		store32(q.used, 0, uint32(q.nextUsed)<<16)
	}
	return q, nil
}

// resolve checks the layout (virtio 1.2 §2.7: alignments 16, 2 and 4) and finds the rings' host memory.
func (q *Queue) resolve() error {
	c, n := q.cfg, uint32(q.cfg.Size)
	if n == 0 || n > MaxQueueSize || n&(n-1) != 0 {
		return fmt.Errorf("%w: size %d is not a power of two up to %d", ErrMalformed, n, MaxQueueSize)
	}
	if c.Desc%16 != 0 || c.Avail%2 != 0 || c.Used%4 != 0 {
		return fmt.Errorf("%w: rings at %#x, %#x, %#x are not aligned", ErrMalformed, c.Desc, c.Avail, c.Used)
	}
	q.availOff = int(c.Avail & 2)
	var err error
	if q.desc, err = bytes(q.mem, c.Desc, 16*n); err != nil {
		return fmt.Errorf("%w: descriptor table: %v", ErrMalformed, err)
	}
	// Both sizes cover the event field after the ring and are rounded up to whole words.
	if q.avail, err = bytes(q.mem, c.Avail&^3, (uint32(q.availOff)+4+2*n+2+3)&^3); err != nil {
		return fmt.Errorf("%w: available ring: %v", ErrMalformed, err)
	}
	if q.used, err = bytes(q.mem, c.Used, (4+8*n+2+3)&^3); err != nil {
		return fmt.Errorf("%w: used ring: %v", ErrMalformed, err)
	}
	return nil
}

// State is what a restored queue is made of.
func (q *Queue) State() QueueState {
	return QueueState{QueueConfig: q.cfg, NextAvail: q.nextAvail, NextUsed: q.nextUsed, Signalled: q.signalled}
}

// Disable stops the queue, as the driver does by writing 0 to QueueReady.
func (q *Queue) Disable() { q.cfg.Ready = false }

// Err is why the queue stopped, or nil.
func (q *Queue) Err() error { return q.err }

// Fail stops the queue for what a device found wrong with a chain, as if the ring were malformed.
func (q *Queue) Fail(err error) { q.fail("%w", err) }

func (q *Queue) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
	}
}

func (q *Queue) usable() bool { return q.cfg.Ready && q.err == nil }

// available is how many chains wait. An index that jumped by more than the queue's size stops the queue.
func (q *Queue) available() uint16 {
	n := q.AvailIndex() - q.nextAvail
	if n > q.cfg.Size {
		q.fail("available index jumped to %d, %d is next, size %d", q.nextAvail+n, q.nextAvail, q.cfg.Size)
		return 0
	}
	return n
}

// AvailIndex is the driver's available index, free-running. The queue must be ready.
func (q *Queue) AvailIndex() uint16 { return load16(q.avail, q.availOff+2) }

// Empty reports whether no chain waits. A stopped queue is empty.
func (q *Queue) Empty() bool { return !q.usable() || q.available() == 0 }

// Pop takes the next available chain into c, reusing its memory. It reports false if there is none, or if
// the ring is malformed, which stops the queue for good (see Err).
func (q *Queue) Pop(c *Chain) bool {
	if !q.usable() || q.available() == 0 {
		return false
	}
	slot := int(q.nextAvail & (q.cfg.Size - 1))
	head := binary.LittleEndian.Uint16(q.avail[q.availOff+4+2*slot:])
	if err := c.walk(q, head); err != nil {
		q.fail("chain at descriptor %d: %v", head, err)
		return false
	}
	q.nextAvail++
	return true
}

// Unpop gives back the n chains that were popped last, untouched. They are popped again in the same order.
func (q *Queue) Unpop(n int) { q.nextAvail -= uint16(n) }

// Push returns a chain to the driver, n bytes of its writable part written.
func (q *Queue) Push(c *Chain, n uint32) {
	q.Stage(c, n)
	q.Publish()
}

// Stage is Push, but the driver sees nothing of it before Publish: for chains that it must find all at once.
func (q *Queue) Stage(c *Chain, n uint32) {
	if !q.usable() {
		return
	}
	slot := 4 + 8*int(q.nextUsed&(q.cfg.Size-1))
	binary.LittleEndian.PutUint32(q.used[slot:], uint32(c.head))
	binary.LittleEndian.PutUint32(q.used[slot+4:], n)
	q.nextUsed++
}

// Publish shows the driver what was staged.
func (q *Queue) Publish() {
	if !q.usable() {
		return
	}
	// The device owns the whole word: the flags, which stay 0, and the index.
	store32(q.used, 0, uint32(q.nextUsed)<<16)
}

// Rearm asks the driver to notify when it makes the chain available that is popped next, and reports whether
// it already has.
func (q *Queue) Rearm() bool { return q.rearm(q.nextAvail) }

// RearmAfter asks the driver to notify when its available index moves past n, and reports whether it already
// has. With AvailIndex as n, the next addition notifies even if earlier chains still wait.
func (q *Queue) RearmAfter(n uint16) bool { return q.rearm(n) }

func (q *Queue) rearm(event uint16) bool {
	if !q.usable() {
		return false
	}
	if q.eventIdx && !store16(q.used, 4+8*int(q.cfg.Size), event) {
		q.fail("the word of avail_event is being overwritten")
		return false
	}
	return q.available() != 0 && q.AvailIndex() != event
}

// NeedsInterrupt decides whether the driver wants to hear of what was pushed since the last decision. It is
// for transports; devices call Backend.Interrupt.
func (q *Queue) NeedsInterrupt() bool {
	if !q.usable() || q.signalled == q.nextUsed {
		return false
	}
	last := q.signalled
	q.signalled = q.nextUsed
	if !q.eventIdx {
		return load16(q.avail, q.availOff)&1 == 0
	}
	event := load16(q.avail, q.availOff+4+2*int(q.cfg.Size))
	// virtio 1.2 §2.7.10: interrupt if event lies in [last, nextUsed).
	return q.nextUsed-event-1 < q.nextUsed-last
}
