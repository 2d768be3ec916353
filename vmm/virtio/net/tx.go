package net

import (
	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// send works off the guest's frames.
func (d *Device) send() {
	for n := 1; d.active; n++ {
		q := d.backend.Queues[queueTX]
		if !q.Pop(&d.tx) {
			if q.Rearm() {
				continue
			}
			d.backend.Interrupt(queueTX)
			return
		}
		d.transmit(&d.tx)
		q.Push(&d.tx, 0)
		if n%turn == 0 {
			lock := d.backend.Lock
			d.backend.Interrupt(queueTX)
			lock.Unlock()
			lock.Lock()
		}
	}
}

// transmit writes one frame. The header is copied, checked, and sent as the copy: the guest may change its own
// meanwhile. The frame is never looked at.
func (d *Device) transmit(c *virtio.Chain) {
	n := c.OutLen()
	if n < headerSize+ethernetSize || n > maxFrame || c.ReadAt(d.header[:], 0) != nil ||
		!offloadsNegotiated(d.header[:], d.backend.Features) {
		d.Stats.Malformed.Add(1)
		return
	}
	d.vector.reset()
	d.iov = virtio.Slice(append(d.iov[:0], d.header[:]), c.Out, headerSize, n-headerSize)
	d.vector.add(d.iov, n)
	if !d.write() {
		d.Stats.DroppedOut.Add(1)
		return
	}
	d.Stats.FramesOut.Add(1)
	d.Stats.BytesOut.Add(n - headerSize)
}

// write gives the TAP the frame in the vector. A TAP takes all of a frame or nothing.
func (d *Device) write() bool {
	if d.raw == nil {
		return false
	}
	var errno unix.Errno
	err := d.raw.Control(func(fd uintptr) { _, errno = d.vector.move(unix.SYS_WRITEV, fd) })
	return err == nil && errno == 0
}
