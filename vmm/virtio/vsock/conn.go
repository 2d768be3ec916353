package vsock

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// firstPort is where host ports start, above those that mean something to anyone.
const firstPort = 1 << 30

// key names a connection: there is one guest and one host.
type key struct{ host, guest uint32 }

type connState uint8

const (
	connecting  connState = iota // REQUEST sent; waiting for RESPONSE
	accepting                    // REQUEST received; the host's end is being made
	established                  // data may flow
	flushing                     // over for the guest; the client still has to take what the guest sent
	closed                       // gone from the table
)

// control packets a connection wants to send, by bit. A later one of a kind says all that an earlier one
// would have said, so what a connection can have waiting is bounded.
type control uint8

const (
	wantRequest control = 1 << iota
	wantResponse
	wantCreditRequest
	wantCreditUpdate
	wantShutdown
)

// conn is one stream. The transport's lock guards it.
type conn struct {
	dev   *Device
	lock  sync.Locker // the transport's
	key   key
	state connState
	// settled is closed when the state is no longer connecting or accepting.
	settled chan struct{}
	// reason says why the connection ended, for the client if it is still waiting for its OK.
	reason string
	// wake tells the connection's goroutine that what it waited for (credit, buffers, the end) may be there.
	wake chan struct{}
	want control
	// opened says that the connection was established at some time.
	opened bool
	// queued and starved say that the connection is in the device's list of that name.
	queued, starved bool
	timer           *time.Timer

	// The host's socket. fd is valid while sock is set; the goroutine that owns the socket clears it under the
	// lock before it closes the socket.
	sock *net.UnixConn
	raw  syscall.RawConn
	fd   int

	// Toward the guest.
	early        []byte // what the client sent along with CONNECT, sent first
	batch        int    // guest buffers to fill by the next read
	sent         uint32 // bytes sent, modulo 2³²
	peerBufAlloc uint32
	peerFwdCnt   uint32
	noCredit     bool // waiting for credit
	hostEOF      bool // the client will send no more
	shutdown     uint32

	// From the guest.
	received      uint32 // bytes received, modulo 2³²
	forwarded     uint32 // of these, bytes the socket took
	told          uint32 // forwarded as the guest knows it
	backlog       []byte // bytes the socket has yet to take
	draining      bool   // a goroutine writes the backlog
	guestShutdown uint32
	hostGone      bool // nobody will read what the guest sends
}

func (d *Device) newConn(k key, state connState) *conn {
	c := &conn{dev: d, lock: d.backend.Lock, key: k, state: state, settled: make(chan struct{}), wake: make(chan struct{}, 1), batch: 1}
	d.conns[k] = c
	return c
}

// attach gives the connection its host socket.
func (c *conn) attach(sock *net.UnixConn) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { c.fd = int(fd) }); err != nil {
		return err
	}
	c.sock, c.raw = sock, raw
	return nil
}

// allocatePort returns a host port that no connection to the guest port uses. It goes round, so that a port is
// not used again while the guest may remember its last connection.
func (d *Device) allocatePort(guest uint32) uint32 {
	for {
		p := d.nextPort
		if d.nextPort++; d.nextPort == 1<<31 {
			d.nextPort = firstPort
		}
		if _, used := d.conns[key{p, guest}]; !used {
			return p
		}
	}
}

func (c *conn) settle(state connState) {
	if c.state == connecting || c.state == accepting {
		close(c.settled)
	}
	c.state = state
	c.opened = c.opened || state == established
}

// finish ends a connection at once. The goroutine that owns the socket closes it.
func (d *Device) finish(c *conn, reason string) {
	if c.state == closed {
		return
	}
	c.reason = reason
	c.settle(closed)
	delete(d.conns, c.key)
	d.open.add(-1)
	c.want, c.backlog, c.early = 0, nil, nil
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.sock != nil && c.opened { // a client without its OK still gets an ERR
		unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	c.poke()
}

// resetConn ends a connection and tells the guest.
func (d *Device) resetConn(c *conn, reason string) {
	// A guest that was never sent the REQUEST knows nothing of the connection.
	if c.state < flushing && c.want&wantRequest == 0 {
		d.queueReset(c.header(opRST))
	}
	d.finish(c, reason)
}

// poke wakes the connection's goroutine.
func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// send queues a control packet.
func (c *conn) send(w control) {
	c.want |= w
	if !c.queued {
		c.queued = true
		c.dev.pending = append(c.dev.pending, c)
	}
}

// header starts a packet to the guest; every packet carries the credit.
func (c *conn) header(op uint16) header {
	return header{srcCID: hostCID, dstCID: c.dev.cid, srcPort: c.key.host, dstPort: c.key.guest, typ: typeStream, op: op,
		bufAlloc: c.dev.Limits.BufferBytes, fwdCnt: c.forwarded}
}

// credit is how many bytes the guest has room for. A guest that contradicts itself gets nothing.
func (c *conn) credit() uint32 {
	inFlight := c.sent - c.peerFwdCnt
	if inFlight > c.peerBufAlloc {
		return 0
	}
	return c.peerBufAlloc - inFlight
}

// forward accounts for n bytes from the guest that need no more room, and tells the guest once half of its
// credit is free again without its knowing.
func (c *conn) forward(n int) {
	c.forwarded += uint32(n)
	if c.forwarded-c.told >= c.dev.Limits.BufferBytes/2 {
		c.send(wantCreditUpdate)
	}
}

// loseHost notes that the client is gone for good: the guest is told, and what it still sends is dropped. The
// guest confirms with RST; if it doesn't, a timer ends the connection.
func (d *Device) loseHost(c *conn) {
	if c.state == flushing {
		d.finish(c, "the client is gone")
	}
	if c.hostGone || c.state != established {
		return
	}
	c.hostGone, c.hostEOF = true, true
	c.forward(len(c.backlog))
	c.backlog = nil
	c.shutdown = shutdownBoth
	c.send(wantShutdown)
	c.timer = time.AfterFunc(d.Limits.CloseTimeout, func() {
		c.lock.Lock()
		defer c.lock.Unlock()
		d.resetConn(c, "the guest did not confirm the end of the connection")
		d.flush()
	})
}
