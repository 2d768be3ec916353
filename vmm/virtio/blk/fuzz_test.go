package blk_test

import (
	"testing"

	"cella.dev/cella/vmm/virtio/blk"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// FuzzRequest sends a request of any header, data and layout: each byte of layout is one buffer, its length
// times 8 in the low seven bits, writable if the top bit is set.
func FuzzRequest(f *testing.F) {
	for kind := range uint32(15) {
		f.Add(header(kind, 1), rangeOf(0, 1, 0), []byte{2, 0x80 | 64, 0x81})
		f.Add(header(kind, 1), rangeOf(1<<63, 1<<31, 1), []byte{2, 2, 0x81})
	}
	f.Add(header(0, 1<<64-1), []byte{}, []byte{2, 0xff, 0xff})
	f.Add([]byte{}, []byte{}, []byte{0x80})
	f.Fuzz(func(t *testing.T, hdr, data, layout []byte) {
		file := newFile(t)
		g := newGuest(t, file, blk.Config{}).init(flush)
		base := g.Alloc(1 << 18)
		n := copy(g.Mem.RAM[base:], hdr)
		copy(g.Mem.RAM[base+uint64(n):base+1<<18], data)
		var bufs []virtiotest.Buffer
		var room uint32
		for i, b := range layout[:min(len(layout), 200)] {
			// Writable buffers last, as the ring demands; what breaks the ring is the queue's matter.
			buf := virtiotest.Buffer{Addr: base + uint64(i)*1024, Len: uint32(b&0x7f) * 8, Write: b&0x80 != 0 || len(bufs) > 0 && bufs[len(bufs)-1].Write}
			if buf.Write {
				room += buf.Len
			}
			bufs = append(bufs, buf)
		}
		if len(bufs) == 0 {
			return
		}
		q := g.Queues[0]
		head := q.Add(bufs...)
		q.Kick()
		if u, ok := q.Take(); !ok || u.Head != head || u.Len > room {
			t.Errorf("used %+v, %t for a chain with room for %d", u, ok, room)
		}
		if st, err := file.Stat(); err != nil || st.Size() != diskSize {
			t.Errorf("the disk's size is %d, %v", st.Size(), err)
		}
	})
}
