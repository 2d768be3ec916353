package virtio_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"cella.dev/cella/vmm/virtio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// FuzzQueue lets the guest put anything anywhere: the input is the guest's memory, rings included.
func FuzzQueue(f *testing.F) {
	seed := func(ds ...desc) {
		m := virtiotest.NewMemory(ramSize)
		offer(m, ds...)
		f.Add(m.RAM[descAddr:descAddr+16*size], m.RAM[availAddr:availAddr+6+2*size], m.RAM[bufAddr:bufAddr+64], uint16(0))
	}
	seed(desc{bufAddr, 16, 0, 0})
	seed(desc{bufAddr, 16, 1, 1}, desc{bufAddr, 16, 2, 0})
	seed(desc{bufAddr, 1, 1, 0})
	seed(desc{bufAddr, 32, 4, 0})
	seed(desc{1 << 63, 1<<32 - 1, 3, 1}, desc{ramSize - 1, 2, 7, 65535})
	f.Fuzz(func(t *testing.T, descs, avail, bufs []byte, start uint16) {
		m := virtiotest.NewMemory(ramSize)
		copy(m.RAM[descAddr:descAddr+16*size], descs)
		copy(m.RAM[availAddr:availAddr+6+2*size], avail)
		copy(m.RAM[bufAddr:ramSize], bufs)
		q, err := virtio.NewQueue(m, virtio.QueueState{QueueConfig: layout, NextAvail: start, NextUsed: start, Signalled: start},
			virtio.FeatureEventIdx|virtio.FeatureIndirectDesc)
		virtiotest.Must(t, err)
		var c virtio.Chain
		n := 0
		for q.Pop(&c) {
			if n++; n > size {
				t.Fatalf("%d chains from a queue of %d", n, size)
			}
			checkChain(t, &c)
			q.Push(&c, uint32(c.InLen()))
		}
		if q.Rearm() && q.Err() == nil {
			t.Error("Rearm sees a chain that Pop did not")
		}
		q.NeedsInterrupt()
		if q.Err() != nil && !errors.Is(q.Err(), virtio.ErrMalformed) {
			t.Errorf("error %v", q.Err())
		}
		if used := binary.LittleEndian.Uint16(m.RAM[usedAddr+2:]); n > 0 && used != start+uint16(n) {
			t.Errorf("used index %d after %d chains from %d", used, n, start)
		}
	})
}

func checkChain(t *testing.T, c *virtio.Chain) {
	var out, in uint64
	for _, b := range c.Out {
		out += uint64(len(b))
	}
	for _, b := range c.In {
		in += uint64(len(b))
	}
	if out != c.OutLen() || in != c.InLen() || out+in > math.MaxUint32 || len(c.Out)+len(c.In) > virtio.MaxQueueSize {
		t.Fatalf("chain of %d and %d bytes says %d and %d, in %d buffers", out, in, c.OutLen(), c.InLen(), len(c.Out)+len(c.In))
	}
	b := make([]byte, min(out, 100))
	if err := c.ReadAt(b, out-uint64(len(b))); err != nil {
		t.Error(err)
	}
	if err := c.ReadAt(make([]byte, 1), out); err == nil {
		t.Error("read beyond the chain")
	}
	if err := c.WriteAt(make([]byte, 1), in); err == nil {
		t.Error("wrote beyond the chain")
	}
}

// FuzzLayout lets the driver put the rings anywhere.
func FuzzLayout(f *testing.F) {
	f.Add(uint16(size), uint64(descAddr), uint64(availAddr), uint64(usedAddr))
	f.Add(uint16(256), uint64(0), uint64(ramSize-2), uint64(1<<64-4))
	f.Add(uint16(1), uint64(16), uint64(18), uint64(16)) // all over each other
	f.Fuzz(func(t *testing.T, n uint16, desc, avail, used uint64) {
		m := virtiotest.NewMemory(ramSize)
		q, err := virtio.NewQueue(m, virtio.QueueState{QueueConfig: virtio.QueueConfig{Size: n, Ready: true, Desc: desc,
			Avail: avail, Used: used}}, virtio.FeatureEventIdx)
		if err != nil {
			if !errors.Is(err, virtio.ErrMalformed) {
				t.Errorf("error %v", err)
			}
			return
		}
		var c virtio.Chain
		for i := 0; q.Pop(&c) && i < 1000; i++ {
			q.Push(&c, 1)
			q.Rearm()
			q.NeedsInterrupt()
		}
	})
}
