// Package vsock is the virtio socket device (virtio 1.2 §5.10): streams between ports inside the guest and
// unix socket connections on the host. A host client connects to the device's unix socket, writes
// "CONNECT port\n", and reads "OK hostport\n" or "ERR reason\n"; after OK the connection is the stream. It
// needn't wait for the OK to go on writing.
//
//	host → guest: one goroutine per connection waits for its socket, and reads straight into the guest's buffers
//	guest → host: the notification writes straight from the guest's buffers to the socket
//
// Nothing waits for a socket while it holds the transport's lock. What a socket doesn't take at once is kept
// for it, up to the credit the guest was given, and only that connection waits.
package vsock

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cella.dev/cella/vmm/virtio"
)

const deviceType = 19

// Queues, in order (§5.10.2).
const (
	queueRX    = 0
	queueTX    = 1
	queueEvent = 2
)

const (
	queueSize = virtio.MaxQueueSize
	// maxResets bounds the RSTs that wait for the guest to offer buffers. Beyond it the guest's packets wait.
	maxResets = 256
	// turn is how many packets from the guest are handled before others get the lock.
	turn = 64
)

// Telling the guest that its packets were taken costs it an interrupt, two exits and a work item, only to free
// memory. All queues share the interrupt, so that news waits for a packet to the guest, but not beyond these.
const (
	holdPackets = 32
	holdBytes   = 256 << 10
	holdTime    = 50 * time.Millisecond
)

// Limits bound what one guest's connections cost the host.
type Limits struct {
	// MaxConnections is how many may be open at once; further clients get ERR.
	MaxConnections int
	// BufferBytes is the credit given to the guest per connection: what is kept in memory, at most, for a
	// host client that doesn't read.
	BufferBytes uint32
	// ConnectTimeout is how long a client waits in all: for the driver, for the guest's answer.
	ConnectTimeout time.Duration
	// CloseTimeout is how long the guest may take to confirm the end of a connection before it is reset.
	CloseTimeout time.Duration
}

// Stats may be read at any time.
type Stats struct {
	PacketsIn, PacketsOut, BytesIn, BytesOut atomic.Uint64 // In is from the guest
	Opened, Refused                          atomic.Uint64 // connections established; those that failed
	Resets                                   atomic.Uint64 // RSTs sent
	Malformed                                atomic.Uint64 // packets that no driver sends
	TransportResets                          atomic.Uint64
}

// Device is a socket device.
type Device struct {
	Stats Stats
	// Limits may be changed before the device is used.
	Limits Limits

	cid    uint64
	accept func(port uint32) (*net.UnixConn, error)
	open   tally

	// mu guards what must work before there is a backend. It is taken inside the transport's lock, never
	// around it.
	mu         sync.Mutex
	lock       sync.Locker   // the transport's lock, once there is one
	ready      chan struct{} // closed while the device is active
	abort      chan struct{} // closed, and replaced, by CloseAll
	handshakes map[*net.UnixConn]struct{}

	// The transport's lock guards all that follows.
	backend  virtio.Backend
	active   bool
	conns    map[key]*conn
	nextPort uint32
	pending  []*conn  // connections with control packets to send, in order
	resets   []header // RSTs that belong to no connection any more
	starved  []*conn  // connections that wait for the guest to offer buffers
	txPaused bool     // packets from the guest wait until resets are delivered
	reset    resetEvent
	chain    virtio.Chain // of the packet from the guest that is being handled
	rx       [maxBatch]virtio.Chain
	iov      [][]byte
	// touched says that the guest has packets or events it was not told of; held counts its own packets that
	// were taken without telling it, and their bytes.
	touched   bool
	held      int
	heldBytes uint64
	heldTimer *time.Timer
	heldArmed bool
}

// New returns a device for a guest whose address is cid; 3 is the customary one.
func New(cid uint64) *Device {
	return &Device{
		Limits: Limits{MaxConnections: 512, BufferBytes: 256 << 10, ConnectTimeout: 30 * time.Second,
			CloseTimeout: 2 * time.Second},
		cid: cid, ready: make(chan struct{}), abort: make(chan struct{}),
		handshakes: map[*net.UnixConn]struct{}{}, conns: map[key]*conn{}, nextPort: firstPort,
	}
}

// Accept sets what connections that the guest opens to the host are given: the far end of the stream, which
// the device then owns. Without it they are refused. Call it before the device is used.
func (d *Device) Accept(dial func(port uint32) (*net.UnixConn, error)) { d.accept = dial }

// Type is the virtio device ID of socket devices.
func (d *Device) Type() uint32 { return deviceType }

// Features has no bits of the device's own: streams are what there is without any.
func (d *Device) Features() uint64 { return 0 }

// QueueSizes gives RX, TX and events.
func (d *Device) QueueSizes() []uint16 { return []uint16{queueSize, queueSize, queueSize} }

// ReadConfig serves guest_cid, all of the configuration space (§5.10.4).
func (d *Device) ReadConfig(offset uint64, p []byte) {
	c := binary.LittleEndian.AppendUint64(nil, d.cid)
	clear(p)
	if offset < uint64(len(c)) {
		copy(p, c[offset:])
	}
}

// WriteConfig ignores writes.
func (d *Device) WriteConfig(uint64, []byte) {}

// Activate takes the queues and lets waiting clients go on.
func (d *Device) Activate(b virtio.Backend) error {
	d.backend, d.active = b, true
	d.mu.Lock()
	d.lock = b.Lock
	close(d.ready)
	d.mu.Unlock()
	return nil
}

// Reset ends all connections without a word to the guest, which is resetting its driver.
func (d *Device) Reset() {
	if !d.active {
		return
	}
	for _, c := range d.conns {
		d.finish(c, "the guest reset its vsock driver")
	}
	d.active, d.backend = false, virtio.Backend{}
	d.pending, d.resets, d.starved, d.txPaused = nil, nil, nil, false
	d.reset, d.touched, d.held, d.heldBytes = resetEvent{}, false, 0, 0
	d.mu.Lock()
	d.ready = make(chan struct{})
	d.mu.Unlock()
}

// Notify handles the guest's packets, or uses its new buffers.
func (d *Device) Notify(queue int) {
	if !d.active {
		return
	}
	ungated := d.stepReset()
	d.sendControl()
	if queue == queueTX || d.txPaused {
		d.drainTX()
	}
	if !d.active {
		return // reset while drainTX gave others their turn
	}
	if ungated || queue != queueTX {
		d.wakeStarved()
	}
	d.flush()
}

// flush ends a critical section: it sends the control packets that wait and raises interrupts.
func (d *Device) flush() {
	if !d.active {
		return
	}
	d.sendControl()
	if d.touched {
		d.backend.Interrupt(queueRX)
		d.backend.Interrupt(queueEvent)
	}
	switch {
	case d.touched && d.held > 0, d.held >= holdPackets, d.heldBytes >= holdBytes:
		d.release()
	case d.held > 0 && !d.heldArmed:
		d.armRelease()
	}
	d.touched = false
}

// release tells the guest of the packets that were taken.
func (d *Device) release() {
	d.held, d.heldBytes = 0, 0
	d.backend.Interrupt(queueTX)
}

// armRelease makes sure that the guest is told some time. The timer isn't stopped when it is told sooner: one
// timer that finds nothing to do is cheaper than one for each packet.
func (d *Device) armRelease() {
	d.heldArmed = true
	if d.heldTimer != nil {
		d.heldTimer.Reset(holdTime)
		return
	}
	lock := d.backend.Lock
	d.heldTimer = time.AfterFunc(holdTime, func() {
		lock.Lock()
		defer lock.Unlock()
		d.heldArmed = false
		if d.active && d.held > 0 {
			d.release()
		}
	})
}

// CloseAll resets every connection, on both sides, and turns away clients that still wait. While the transport
// is paused it waits, as everything does that has to tell the guest something.
func (d *Device) CloseAll() {
	d.mu.Lock()
	lock := d.lock
	close(d.abort)
	d.abort = make(chan struct{})
	for sock := range d.handshakes {
		sock.SetReadDeadline(time.Unix(1, 0))
	}
	d.mu.Unlock()
	if lock == nil {
		return
	}
	lock.Lock()
	defer lock.Unlock()
	for _, c := range d.conns {
		d.resetConn(c, "all connections were closed")
	}
	d.flush()
}
