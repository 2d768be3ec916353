package rng_test

import (
	"bytes"
	"testing"

	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/rng"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

func newGuest(t *testing.T) (*virtiotest.Driver, *rng.Device, *mmio.Transport) {
	t.Helper()
	dev, mem, irq := rng.New(), virtiotest.NewMemory(1<<18), virtiotest.NewInterrupt()
	tr := mmio.New(mem, dev, irq)
	d := virtiotest.NewDriver(tr, mem, irq, 0x1000)
	virtiotest.Must(t, d.Init(virtiotest.Version1|virtiotest.EventIdx|virtiotest.Indirect, 1, 64))
	return d, dev, tr
}

func TestFill(t *testing.T) {
	for _, tt := range []struct {
		name   string
		bufs   []uint32 // lengths of writable buffers
		filled uint32
	}{
		{"a cache line", []uint32{64}, 64},
		{"several buffers", []uint32{16, 0, 100, 7}, 123},
		{"more than the bound", []uint32{3000, 3000, 3000}, 4096},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, dev, _ := newGuest(t)
			var bufs []virtiotest.Buffer
			base := d.Alloc(1 << 14)
			next := base
			for _, n := range tt.bufs {
				bufs = append(bufs, virtiotest.Buffer{Addr: next, Len: n, Write: true})
				next += uint64(n)
			}
			q := d.Queues[0]
			q.Add(bufs...)
			q.Kick()
			u, ok := q.Take()
			if !ok || u.Len != tt.filled {
				t.Fatalf("used %+v, %t, want %d bytes", u, ok, tt.filled)
			}
			// 16 zero bytes in a row are as likely as guessing a key.
			got := d.Mem.RAM[base : base+1<<14]
			for i := 0; i+16 <= int(tt.filled); i += 16 {
				if bytes.Equal(got[i:i+16], make([]byte, 16)) {
					t.Errorf("bytes %d to %d are zero", i, i+16)
				}
			}
			if !bytes.Equal(got[tt.filled:], make([]byte, 1<<14-int(tt.filled))) {
				t.Error("the device wrote more than it said")
			}
			if n := dev.Stats.Bytes.Load(); n != uint64(tt.filled) {
				t.Errorf("%d bytes counted, want %d", n, tt.filled)
			}
		})
	}
}

func TestChainWithoutRoom(t *testing.T) {
	d, dev, _ := newGuest(t)
	q := d.Queues[0]
	q.Add(virtiotest.Buffer{Addr: d.Alloc(16), Len: 16})
	q.Kick()
	if u, ok := q.Take(); !ok || u.Len != 0 || dev.Stats.Malformed.Load() != 1 {
		t.Errorf("used %+v, %t, malformed %d", u, ok, dev.Stats.Malformed.Load())
	}
}

func TestSaveAndRestore(t *testing.T) {
	d, _, tr := newGuest(t)
	state, err := tr.Save()
	virtiotest.Must(t, err)
	restored := mmio.New(d.Mem, rng.New(), d.IRQ)
	virtiotest.Must(t, restored.Restore(state))
	d.Bus = restored
	q := d.Queues[0]
	q.Add(virtiotest.Buffer{Addr: d.Alloc(32), Len: 32, Write: true})
	q.Kick()
	if u, ok := q.Take(); !ok || u.Len != 32 {
		t.Errorf("after a restore: used %+v, %t", u, ok)
	}
	if rng.New().Restore([]byte{2}) == nil || rng.New().Restore(nil) == nil {
		t.Error("a foreign state was accepted")
	}
}
