package net

import (
	"errors"

	"golang.org/x/sys/unix"
)

var errSmallBuffer = errors.New("the guest offered a network receive buffer without room for a header")

// verdict is how a critical section of receive ended.
type verdict int

const (
	again     verdict = iota // there may be more: others get their turn first
	noFrame                  // the TAP is empty
	noBuffers                // the guest has to offer buffers first, or the device is inactive
	failed                   // the TAP is gone
)

// receive moves frames to the guest until Close, or until the TAP fails, which it does when it is deleted.
func (d *Device) receive() {
	defer close(d.ended)
	for {
		var v verdict
		err := d.raw.Read(func(fd uintptr) bool {
			v = d.fill(fd)
			return v != noFrame // false waits for the TAP
		})
		select {
		case <-d.closing:
			return
		default:
		}
		if err != nil || v == failed {
			d.Stats.Failed.Store(1)
			return
		}
		if v == noBuffers {
			<-d.wake
		}
	}
}

// fill is one critical section: at most turn frames.
func (d *Device) fill(fd uintptr) verdict {
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.active {
		return noBuffers
	}
	v := again
	for n := 0; n < turn && v == again; n++ {
		if v = noBuffers; d.gather() {
			v = d.read(fd)
		}
	}
	d.backend.Queues[queueRX].Unpop(d.rx.n)
	d.rx.clear()
	d.backend.Interrupt(queueRX)
	return v
}

// gather takes chains until the longest frame fits. It says false if the guest must offer more first, and then has it
// notify. A queue too small for the longest frame is used as it is.
func (d *Device) gather() bool {
	q := d.backend.Queues[queueRX]
	most := 1
	if d.backend.Features&featureMrgRxBuf != 0 {
		most = int(q.State().Size)
	}
	for want := d.frameSize(); d.rx.n < most && d.rx.room < want; {
		c := d.rx.at(d.rx.n)
		if !q.Pop(c) {
			if q.RearmAfter(q.AvailIndex()) {
				continue
			}
			return false
		}
		if c.InLen() < headerSize {
			q.Fail(errSmallBuffer)
			return false
		}
		d.rx.added()
	}
	return true
}

// read moves one frame into the chains that were taken.
func (d *Device) read(fd uintptr) verdict {
	d.vector.reset()
	for i := range d.rx.n {
		d.vector.add(d.rx.at(i).In, maxFrame)
	}
	room := d.vector.bytes
	d.vector.addSpare(d.spare[:])
	n, errno := d.vector.move(unix.SYS_READV, fd)
	switch {
	case errno == unix.EAGAIN:
		return noFrame
	case errno != 0 || n == 0:
		return failed
	case n < headerSize+ethernetSize:
		return again // no TAP says that little
	case n > room:
		d.Stats.DroppedIn.Add(1) // what came is cut
		return again
	}
	d.deliver(n)
	return again
}

// deliver hands a frame of n bytes, with its header, to the guest.
func (d *Device) deliver(n uint64) {
	q := d.backend.Queues[queueRX]
	buffers := 0
	for left := n; left > 0; buffers++ {
		left -= min(left, d.rx.at(buffers).InLen())
	}
	if err := d.finishHeader(buffers); err != nil {
		q.Fail(err)
		return
	}
	d.Stats.FramesIn.Add(1)
	d.Stats.BytesIn.Add(n - headerSize)
	for range buffers {
		c := d.rx.at(0)
		part := min(n, c.InLen())
		q.Stage(c, uint32(part))
		n -= part
		d.rx.drop()
	}
	q.Publish() // the driver looks for all buffers of a frame once it sees the first
}

// finishHeader writes what the TAP leaves as it was, the number of buffers; and for a driver that does not know about
// checksums, that nothing is said of them.
func (d *Device) finishHeader(buffers int) error {
	c := d.rx.at(0)
	if d.backend.Features&featureGuestCSum == 0 {
		if err := c.WriteAt([]byte{0}, 0); err != nil {
			return err
		}
	}
	return c.WriteAt(headerTail(buffers), numBuffersOffset)
}
