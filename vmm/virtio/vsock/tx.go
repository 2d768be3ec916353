package vsock

import (
	"strconv"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// drainTX handles the packets that the guest has sent. It gives others their turn now and then, and stops
// while the guest takes no RSTs, which is how a guest that causes them is slowed down.
func (d *Device) drainTX() {
	lock, q := d.backend.Lock, d.backend.Queues[queueTX]
	for n := 1; ; n++ {
		if len(d.resets) >= maxResets {
			d.sendControl()
		}
		if d.txPaused = len(d.resets) >= maxResets; d.txPaused {
			return
		}
		if !q.Pop(&d.chain) {
			if !q.Rearm() {
				return
			}
			continue
		}
		d.handle(&d.chain)
		q.Push(&d.chain, 0)
		d.held++
		d.heldBytes += d.chain.OutLen()
		if n%turn == 0 {
			d.flush()
			lock.Unlock()
			lock.Lock()
			if !d.active {
				return
			}
		}
	}
}

// handle works on one packet from the guest.
func (d *Device) handle(ch *virtio.Chain) {
	var b [headerSize]byte
	var h header
	if ch.ReadAt(b[:], 0) != nil {
		d.Stats.Malformed.Add(1)
		return
	}
	h.decode(&b)
	d.Stats.PacketsIn.Add(1)
	c := d.conns[key{host: h.dstPort, guest: h.srcPort}]
	switch {
	case h.srcCID != d.cid || h.dstCID != hostCID || h.typ != typeStream:
		d.Stats.Malformed.Add(1)
		d.refuse(h)
	case h.len > maxPayload || uint64(h.len) > ch.OutLen()-headerSize || h.len > 0 && h.op != opRW:
		d.malformed(c, h)
	case c != nil && c.state != flushing:
		d.receive(c, h, ch)
	case h.op == opRequest && c == nil:
		d.acceptGuest(h)
	default:
		d.refuse(h)
	}
}

// refuse answers a packet that belongs to no connection.
func (d *Device) refuse(h header) {
	if h.op == opRST {
		return
	}
	d.queueReset(header{srcCID: h.dstCID, dstCID: h.srcCID, srcPort: h.dstPort, dstPort: h.srcPort, typ: h.typ, op: opRST})
}

// malformed ends the connection of a packet that no driver sends.
func (d *Device) malformed(c *conn, h header) {
	d.Stats.Malformed.Add(1)
	if c == nil || c.state == flushing {
		d.refuse(h)
		return
	}
	d.resetConn(c, "the guest broke the vsock protocol")
}

// receive works on a packet of a connection.
func (d *Device) receive(c *conn, h header, ch *virtio.Chain) {
	c.peerBufAlloc, c.peerFwdCnt = h.bufAlloc, h.fwdCnt
	if c.noCredit && c.credit() > 0 {
		c.noCredit = false
		c.poke()
	}
	switch {
	case h.op == opRST:
		d.finish(c, "the guest refused or reset the connection")
	case h.op == opResponse && c.state == connecting:
		d.establish(c)
	case c.state != established:
		d.malformed(c, h)
	case h.op == opRW:
		d.receiveData(c, h, ch)
	case h.op == opShutdown:
		c.guestShutdown |= h.flags & shutdownBoth
		d.applyShutdown(c)
	case h.op == opCreditRequest:
		c.send(wantCreditUpdate)
	case h.op != opCreditUpdate:
		d.malformed(c, h)
	}
}

// establish tells the client, and sends the guest what the client has sent already.
func (d *Device) establish(c *conn) {
	d.Stats.Opened.Add(1)
	c.settle(established)
	ok := append(strconv.AppendUint([]byte("OK "), uint64(c.key.host), 10), '\n')
	if n, err := unix.Write(c.fd, ok); err != nil || n != len(ok) {
		d.loseHost(c)
		return
	}
	d.sendEarly(c)
}

// receiveData passes a payload on to the client. What the socket doesn't take now is kept.
func (d *Device) receiveData(c *conn, h header, ch *virtio.Chain) {
	c.received += h.len
	if c.guestShutdown&shutdownSend != 0 || c.received-c.forwarded > d.Limits.BufferBytes {
		d.malformed(c, h) // data after its end, or beyond the credit
		return
	}
	d.Stats.BytesIn.Add(uint64(h.len))
	if c.hostGone || h.len == 0 {
		c.forward(int(h.len))
		return
	}
	var n int
	if len(c.backlog) == 0 {
		d.iov = virtio.Slice(d.iov[:0], ch.Out, headerSize, uint64(h.len))
		var err error
		if n, err = writev(c.fd, d.iov); err != nil {
			d.loseHost(c)
			c.forward(int(h.len))
			return
		}
		c.forward(n)
	}
	if n < int(h.len) {
		d.keep(c, ch, n, int(h.len))
	}
}

// writev writes what the socket takes without waiting; that may be nothing.
func writev(fd int, iov [][]byte) (int, error) {
	for {
		n, err := unix.Writev(fd, iov)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		default:
			return 0, err
		}
	}
}

// keep copies bytes [from, to) of the payload to the backlog and has them written when the socket takes them.
func (d *Device) keep(c *conn, ch *virtio.Chain, from, to int) {
	have := len(c.backlog)
	c.backlog = append(c.backlog, make([]byte, to-from)...)
	if err := ch.ReadAt(c.backlog[have:], uint64(headerSize+from)); err != nil {
		d.resetConn(c, "read from guest memory: "+err.Error())
		return
	}
	if !c.draining {
		c.draining = true
		go c.drain()
	}
}

// drain writes the backlog as the client reads.
func (c *conn) drain() {
	// The error is that the socket was closed; who closes it cleans up.
	_ = c.raw.Write(func(uintptr) bool { return c.drainOnce() })
}

// drainOnce reports whether the backlog is gone.
func (c *conn) drainOnce() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	d := c.dev
	defer d.flush()
	if len(c.backlog) > 0 && c.sock != nil {
		n, err := writev(c.fd, [][]byte{c.backlog})
		if err != nil {
			d.loseHost(c)
		} else {
			c.backlog = c.backlog[n:]
			c.forward(n)
		}
		if len(c.backlog) > 0 {
			return false
		}
	}
	c.backlog, c.draining = nil, false
	d.applyShutdown(c)
	return true
}

// applyShutdown passes on what the guest said about its end of the connection, as far as the client has taken
// all that came before. Once the guest wants nothing more, the connection is over for it and it is told so at
// once; the client still gets the rest.
func (d *Device) applyShutdown(c *conn) {
	if c.guestShutdown == shutdownBoth && c.state == established {
		d.queueReset(c.header(opRST))
		c.state, c.want = flushing, 0
	}
	switch {
	case c.state == flushing && (len(c.backlog) == 0 || c.hostGone):
		d.finish(c, "the guest closed the connection")
	case c.state != established && c.state != flushing, c.hostGone:
	case c.guestShutdown&shutdownReceive != 0:
		unix.Shutdown(c.fd, unix.SHUT_RD)
	case c.guestShutdown&shutdownSend != 0 && len(c.backlog) == 0:
		unix.Shutdown(c.fd, unix.SHUT_WR)
	}
}
