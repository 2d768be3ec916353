package vsock

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// maxBatch is how many of the guest's buffers one read fills at most.
const maxBatch = 16

var errSmallBuffer = errors.New("the guest offered a vsock receive buffer without room for data")

// rxChain takes a buffer of the guest for a packet to it, or reports that there is none now and has the guest
// notify about the next.
func (d *Device) rxChain(c *virtio.Chain) bool {
	if !d.active || d.reset.gates() {
		return false
	}
	q := d.backend.Queues[queueRX]
	for !q.Pop(c) {
		if !q.Rearm() {
			return false
		}
	}
	if c.InLen() <= headerSize {
		q.Fail(errSmallBuffer)
		return false
	}
	return true
}

// push completes a packet to the guest: n bytes of payload are in the chain already.
func (d *Device) push(c *virtio.Chain, h header, n uint32) bool {
	var b [headerSize]byte
	h.len = n
	h.encode(&b)
	q := d.backend.Queues[queueRX]
	if err := c.WriteAt(b[:], 0); err != nil {
		q.Fail(err)
		return false
	}
	q.Push(c, headerSize+n)
	d.touched = true
	d.Stats.PacketsOut.Add(1)
	d.Stats.BytesOut.Add(uint64(n))
	return true
}

// queueReset has an RST sent to the guest.
func (d *Device) queueReset(h header) {
	d.Stats.Resets.Add(1)
	d.resets = append(d.resets, h)
}

// sendControl sends RSTs and control packets while the guest has buffers for them.
func (d *Device) sendControl() {
	if d.sendResets() {
		d.sendPending()
	}
}

// sendResets reports whether all RSTs went.
func (d *Device) sendResets() bool {
	n, c := 0, &d.rx[0]
	for n < len(d.resets) && d.rxChain(c) && d.push(c, d.resets[n], 0) {
		n++
	}
	d.resets = append(d.resets[:0], d.resets[n:]...)
	return len(d.resets) == 0
}

func (d *Device) sendPending() {
	n, c := 0, &d.rx[0]
	for ; n < len(d.pending); n++ {
		p := d.pending[n]
		for p.want != 0 && d.rxChain(c) {
			d.push(c, p.nextControl(), 0)
		}
		if p.want != 0 {
			break
		}
		p.queued = false
	}
	rest := copy(d.pending, d.pending[n:])
	clear(d.pending[rest:])
	d.pending = d.pending[:rest]
}

// controlOps has the operation of each control bit.
var controlOps = [...]uint16{opRequest, opResponse, opCreditRequest, opCreditUpdate, opShutdown}

// nextControl takes the first of the wanted packets, in the order in which they make sense to the guest.
func (c *conn) nextControl() header {
	w := c.want & -c.want
	c.want &^= w
	h := c.header(controlOps[bits.TrailingZeros8(uint8(w))])
	if w == wantShutdown {
		h.flags = c.shutdown
	}
	c.want &^= wantCreditUpdate // any packet says as much
	c.told = c.forwarded
	return h
}

// blocked reports that nothing can be sent to the guest now, and arranges for the connection's goroutine to be
// woken when that may have changed.
func (c *conn) blocked() bool {
	if c.credit() == 0 {
		if !c.noCredit {
			c.noCredit = true
			c.send(wantCreditRequest)
		}
		return true
	}
	d := c.dev
	if d.reset.gates() || d.backend.Queues[queueRX].Empty() && !d.backend.Queues[queueRX].Rearm() {
		if !c.starved {
			c.starved = true
			d.starved = append(d.starved, c)
		}
		return true
	}
	return false
}

func (d *Device) wakeStarved() {
	if d.reset.gates() {
		return
	}
	for _, c := range d.starved {
		c.starved = false
		c.poke()
	}
	clear(d.starved)
	d.starved = d.starved[:0]
}

// sendEarly sends what came with CONNECT. It reports whether all of it went.
func (d *Device) sendEarly(c *conn) bool {
	ch := &d.rx[0]
	for len(c.early) > 0 {
		if c.blocked() || !d.rxChain(ch) {
			return false
		}
		n := min(uint64(len(c.early)), ch.InLen()-headerSize, uint64(c.credit()), maxPayload)
		if err := ch.WriteAt(c.early[:n], headerSize); err != nil {
			d.backend.Queues[queueRX].Fail(err)
			return false
		}
		c.pushData(ch, uint32(n))
		c.early = c.early[n:]
	}
	c.early = nil
	return true
}

func (c *conn) pushData(ch *virtio.Chain, n uint32) {
	c.sent += n
	c.told = c.forwarded
	c.want &^= wantCreditUpdate
	c.dev.push(ch, c.header(opRW), n)
}

// verdict is what the goroutine of a connection does next.
type verdict uint8

const (
	again        verdict = iota // there may be more to read
	waitReadable                // for the socket
	waitWake                    // for the guest
	done                        // the socket is of no more use
)

// fill reads once from the host's socket straight into the guest's buffers.
func (c *conn) fill() verdict {
	d := c.dev
	c.lock.Lock()
	defer c.lock.Unlock()
	defer d.flush()
	switch {
	case c.state == closed || c.hostGone:
		return done
	case c.hostEOF || c.state == flushing:
		return d.watchHangup(c)
	case !d.sendEarly(c) || c.blocked():
		return waitWake
	}
	n, room, err := c.readInto()
	switch {
	case err == unix.EINTR:
		return again
	case err == unix.EAGAIN:
		return waitReadable
	case err == errSmallBuffer:
		return waitWake // the device waits for its reset
	case err != nil:
		d.resetConn(c, "read from the client: "+err.Error())
		return done
	case n == 0:
		c.hostEOF = true
		if v := d.watchHangup(c); v == done {
			return done
		}
		c.shutdown |= shutdownSend
		c.send(wantShutdown)
		return waitReadable
	}
	if c.batch = 1; n == room {
		c.batch = maxBatch
	}
	return again
}

// watchHangup tells a client that closed its connection from one that only ended its half.
func (d *Device) watchHangup(c *conn) verdict {
	p := []unix.PollFd{{Fd: int32(c.fd)}}
	if _, err := unix.Poll(p, 0); err == unix.EINTR {
		return again
	}
	if p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) == 0 {
		return waitReadable
	}
	d.loseHost(c)
	return done
}

// readInto reads into as many of the guest's buffers as the last read suggests and makes packets of what came.
// It returns the bytes read and those there was room for. Buffers not used are given back.
func (c *conn) readInto() (n, room uint32, err error) {
	d := c.dev
	d.iov = d.iov[:0]
	credit, chains := c.credit(), 0
	var sizes [maxBatch]uint32
	for chains < c.batch && room < credit {
		ch := &d.rx[chains]
		if !d.rxChain(ch) {
			break
		}
		size := uint32(min(ch.InLen()-headerSize, uint64(credit-room), maxPayload))
		d.iov = virtio.Slice(d.iov, ch.In, headerSize, uint64(size))
		sizes[chains] = size
		room += size
		chains++
	}
	if chains == 0 {
		return 0, 0, errSmallBuffer
	}
	got, err := unix.Readv(c.fd, d.iov)
	n = uint32(max(got, 0))
	used, left := 0, n
	for left > 0 {
		used, left = used+1, left-min(left, sizes[used])
	}
	d.backend.Queues[queueRX].Unpop(chains - used)
	left = n
	for i := range used {
		m := min(left, sizes[i])
		c.pushData(&d.rx[i], m)
		left -= m
	}
	return n, room, err
}

// pump moves data from the host's socket to the guest until either side is done. It owns the socket but
// leaves closing it to the caller.
func (c *conn) pump() {
	defer c.detach()
	for {
		v := again
		err := c.raw.Read(func(uintptr) bool {
			for v = again; v == again; {
				v = c.fill()
			}
			return v != waitReadable
		})
		if err != nil || v == done {
			return
		}
		<-c.wake
	}
}

// detach gives up the socket, which may be closed afterwards.
func (c *conn) detach() {
	d := c.dev
	c.lock.Lock()
	defer c.lock.Unlock()
	d.loseHost(c)
	c.sock, c.fd = nil, -1
	d.flush()
}
