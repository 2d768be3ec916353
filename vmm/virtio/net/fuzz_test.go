package net_test

import (
	"testing"

	"cella.dev/cella/vmm/virtio/virtiotest"
)

// buffers lays buffers out from base on: each byte of layout is one, its length times 16 in the low seven bits.
func buffers(base uint64, layout []byte, write bool) (bufs []virtiotest.Buffer, room uint32) {
	for i, b := range layout[:min(len(layout), 200)] {
		buf := virtiotest.Buffer{Addr: base + uint64(i)*2048, Len: uint32(b&0x7f) * 16, Write: write || b&0x80 != 0}
		write = buf.Write // readable buffers come first
		room += buf.Len
		bufs = append(bufs, buf)
	}
	return bufs, room
}

// FuzzTransmit sends a chain of any header, content and layout.
func FuzzTransmit(f *testing.F) {
	for _, gso := range []byte{0, 1, 4, 0x81} {
		f.Add(header(1, gso, 1448), []byte{127, 127}, uint16(0xffff))
	}
	f.Add([]byte{}, []byte{}, uint16(0))
	f.Add(header(0xff, 0xff, 0xffff), []byte{1, 0x80, 1}, uint16(1))
	f.Fuzz(func(t *testing.T, data, layout []byte, mask uint16) {
		g := newGuest(t, all&(uint64(mask)|merge|status), 256)
		base := g.Alloc(200 * 2048)
		copy(g.Mem.RAM[base:], data)
		bufs, _ := buffers(base, layout, false)
		if len(bufs) == 0 {
			return
		}
		head := g.Queues[tx].Add(bufs...)
		g.Queues[tx].Kick()
		if u, ok := g.Queues[tx].Take(); !ok || u.Head != head || u.Len != 0 {
			t.Errorf("used %+v, %t", u, ok)
		}
		s := &g.dev.Stats
		if n := s.FramesOut.Load() + s.DroppedOut.Load() + s.Malformed.Load(); n != 1 {
			t.Errorf("the frame was counted %d times", n)
		}
	})
}

// FuzzReceive has a frame arrive in receive chains of any layout. Whatever the driver offers, the device writes no more
// than that, and either delivers frames, waits, or asks for a reset.
func FuzzReceive(f *testing.F) {
	f.Add(uint16(60), []byte{100}, uint8(8), uint16(0xffff))
	f.Add(uint16(65000), []byte{100, 3, 1}, uint8(40), uint16(0xffff))
	f.Add(uint16(1514), []byte{0}, uint8(2), uint16(0))
	f.Add(uint16(1514), []byte{127, 127, 0x80}, uint8(1), uint16(0))
	f.Fuzz(func(t *testing.T, frame uint16, layout []byte, chains uint8, mask uint16) {
		g := newGuest(t, all&(uint64(mask)|merge|status), 256)
		base := g.Alloc(200 * 2048)
		bufs, room := buffers(base, layout, true)
		if len(bufs) == 0 {
			return
		}
		for range min(int(chains), g.Queues[rx].Free()/len(bufs)) {
			g.Queues[rx].Add(bufs...)
		}
		g.arrive(header(0, 0, 0), pattern(int(frame)))
		g.Queues[rx].Kick()
		g.transport.Notify(tx) // a critical section of another goroutine in between
		g.transport.Pause()
		if _, err := g.transport.Save(); err != nil {
			t.Error(err)
		}
		for {
			u, ok := g.Queues[rx].Take()
			if !ok {
				break
			}
			if u.Len > room {
				t.Errorf("%d bytes written to a chain with room for %d", u.Len, room)
			}
		}
	})
}
