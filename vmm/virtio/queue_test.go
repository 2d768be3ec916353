package virtio_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"cella.dev/cella/vmm/virtio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// Where the tests put a queue of 8.
const (
	size      = 8
	descAddr  = 0x1000
	availAddr = 0x2000
	usedAddr  = 0x3000
	bufAddr   = 0x4000
	ramSize   = 0x10000
)

var layout = virtio.QueueConfig{Size: size, Ready: true, Desc: descAddr, Avail: availAddr, Used: usedAddr}

type desc struct {
	addr        uint64
	len         uint32
	flags, next uint16
}

func put(ram []byte, addr uint64, d desc) {
	binary.LittleEndian.PutUint64(ram[addr:], d.addr)
	binary.LittleEndian.PutUint32(ram[addr+8:], d.len)
	binary.LittleEndian.PutUint16(ram[addr+12:], d.flags)
	binary.LittleEndian.PutUint16(ram[addr+14:], d.next)
}

func put16(ram []byte, addr uint64, v uint16) { binary.LittleEndian.PutUint16(ram[addr:], v) }
func get16(ram []byte, addr uint64) uint16    { return binary.LittleEndian.Uint16(ram[addr:]) }

// offer writes descriptors from index 0 on and makes head 0 available.
func offer(m *virtiotest.Memory, ds ...desc) {
	for i, d := range ds {
		put(m.RAM, descAddr+16*uint64(i), d)
	}
	put16(m.RAM, availAddr+2, 1)
}

func newQueue(t testing.TB, m *virtiotest.Memory, features uint64) *virtio.Queue {
	t.Helper()
	q, err := virtio.NewQueue(m, virtio.QueueState{QueueConfig: layout}, features)
	virtiotest.Must(t, err)
	return q
}

func TestMalformedChains(t *testing.T) {
	const next, write, indirect = 1, 2, 4
	table := func(m *virtiotest.Memory, ds ...desc) uint64 {
		for i, d := range ds {
			put(m.RAM, 0x8000+16*uint64(i), d)
		}
		return 0x8000
	}
	for _, tt := range []struct {
		name string
		make func(m *virtiotest.Memory)
		ok   bool
	}{
		{"one buffer", func(m *virtiotest.Memory) { offer(m, desc{bufAddr, 16, 0, 0}) }, true},
		{"as many as the queue has", func(m *virtiotest.Memory) {
			ds := make([]desc, size)
			for i := range ds {
				ds[i] = desc{bufAddr, 1, next, uint16(i + 1)}
			}
			ds[size-1].flags = 0
			offer(m, ds...)
		}, true},
		{"an empty buffer outside RAM", func(m *virtiotest.Memory) { offer(m, desc{1 << 60, 0, 0, 0}) }, true},
		{"a loop", func(m *virtiotest.Memory) { offer(m, desc{bufAddr, 1, next, 1}, desc{bufAddr, 1, next, 0}) }, false},
		{"a loop to itself", func(m *virtiotest.Memory) { offer(m, desc{bufAddr, 1, next, 0}) }, false},
		{"next beyond the table", func(m *virtiotest.Memory) { offer(m, desc{bufAddr, 1, next, size}) }, false},
		{"head beyond the table", func(m *virtiotest.Memory) {
			put16(m.RAM, availAddr+4, size)
			put16(m.RAM, availAddr+2, 1)
		}, false},
		{"outside RAM", func(m *virtiotest.Memory) { offer(m, desc{ramSize, 1, 0, 0}) }, false},
		{"one byte past RAM", func(m *virtiotest.Memory) { offer(m, desc{ramSize - 8, 9, 0, 0}) }, false},
		{"address that overflows", func(m *virtiotest.Memory) { offer(m, desc{1<<64 - 1, 2, 0, 0}) }, false},
		{"4 GiB", func(m *virtiotest.Memory) { offer(m, desc{0, 1<<32 - 1, 0, 0}) }, false},
		{"readable after writable", func(m *virtiotest.Memory) { offer(m, desc{bufAddr, 1, write | next, 1}, desc{bufAddr, 1, 0, 0}) }, false},
		{"index jumped", func(m *virtiotest.Memory) { put16(m.RAM, availAddr+2, size+1) }, false},
		{"indirect", func(m *virtiotest.Memory) {
			offer(m, desc{table(m, desc{bufAddr, 8, next, 1}, desc{bufAddr, 8, write, 0}), 32, indirect, 0})
		}, true},
		{"indirect after a direct buffer", func(m *virtiotest.Memory) {
			offer(m, desc{bufAddr, 8, next, 1}, desc{table(m, desc{bufAddr, 8, write, 0}), 16, indirect, 0})
		}, true},
		{"indirect within indirect", func(m *virtiotest.Memory) {
			offer(m, desc{table(m, desc{0x8000, 16, indirect, 0}), 16, indirect, 0})
		}, false},
		{"indirect with a successor", func(m *virtiotest.Memory) {
			offer(m, desc{table(m, desc{bufAddr, 8, 0, 0}), 16, indirect | next, 1}, desc{bufAddr, 8, 0, 0})
		}, false},
		{"indirect table of nothing", func(m *virtiotest.Memory) { offer(m, desc{0x8000, 0, indirect, 0}) }, false},
		{"indirect table of one and a half", func(m *virtiotest.Memory) { offer(m, desc{0x8000, 24, indirect, 0}) }, false},
		{"indirect table of 4 GiB", func(m *virtiotest.Memory) { offer(m, desc{0, 1<<32 - 16, indirect, 0}) }, false},
		{"indirect table outside RAM", func(m *virtiotest.Memory) { offer(m, desc{ramSize - 16, 32, indirect, 0}) }, false},
		{"a loop in an indirect table", func(m *virtiotest.Memory) {
			offer(m, desc{table(m, desc{bufAddr, 1, next, 1}, desc{bufAddr, 1, next, 0}), 32, indirect, 0})
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := virtiotest.NewMemory(ramSize)
			q := newQueue(t, m, virtio.FeatureIndirectDesc)
			tt.make(m)
			var c virtio.Chain
			if got := q.Pop(&c); got != tt.ok {
				t.Errorf("Pop is %t, want %t (%v)", got, tt.ok, q.Err())
			}
			if bad := errors.Is(q.Err(), virtio.ErrMalformed); bad == tt.ok {
				t.Errorf("error %v", q.Err())
			}
			if !tt.ok && (q.Pop(&c) || q.Rearm() || q.NeedsInterrupt() || !q.Empty()) {
				t.Error("a stopped queue still works")
			}
		})
	}
}

func TestNewQueueRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(c *virtio.QueueConfig)
		ok     bool
	}{
		{"a sound layout", func(*virtio.QueueConfig) {}, true},
		{"available ring at 2 modulo 4", func(c *virtio.QueueConfig) { c.Avail += 2 }, true},
		{"rings at the very end", func(c *virtio.QueueConfig) { c.Avail = ramSize - 24; c.Used = ramSize - 128; c.Desc = ramSize - 256 }, true},
		{"size 0", func(c *virtio.QueueConfig) { c.Size = 0 }, false},
		{"size 3", func(c *virtio.QueueConfig) { c.Size = 3 }, false},
		{"size 512", func(c *virtio.QueueConfig) { c.Size = 512 }, false},
		{"unaligned descriptors", func(c *virtio.QueueConfig) { c.Desc += 8 }, false},
		{"unaligned available ring", func(c *virtio.QueueConfig) { c.Avail++ }, false},
		{"unaligned used ring", func(c *virtio.QueueConfig) { c.Used += 2 }, false},
		{"descriptors outside RAM", func(c *virtio.QueueConfig) { c.Desc = ramSize }, false},
		{"available ring outside RAM", func(c *virtio.QueueConfig) { c.Avail = ramSize - 16 }, false},
		{"used ring outside RAM", func(c *virtio.QueueConfig) { c.Used = ramSize - 64 }, false},
		{"addresses that overflow", func(c *virtio.QueueConfig) { c.Desc = 1<<64 - 16 }, false},
	} {
		c := layout
		tt.change(&c)
		_, err := virtio.NewQueue(virtiotest.NewMemory(ramSize), virtio.QueueState{QueueConfig: c}, 0)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, virtio.ErrMalformed) {
			t.Errorf("%s: %v, want success %t", tt.name, err, tt.ok)
		}
	}
}

func TestUnreadyQueueIsEmpty(t *testing.T) {
	q, err := virtio.NewQueue(virtiotest.NewMemory(16), virtio.QueueState{}, virtio.FeatureEventIdx)
	virtiotest.Must(t, err)
	var c virtio.Chain
	if q.Pop(&c) || q.Rearm() || q.NeedsInterrupt() || !q.Empty() || q.Err() != nil {
		t.Error("a queue that isn't ready does something")
	}
	q.Push(&c, 0)
}

func TestIndicesWrap(t *testing.T) {
	m := virtiotest.NewMemory(ramSize)
	q := newQueue(t, m, virtio.FeatureEventIdx)
	put(m.RAM, descAddr, desc{bufAddr, 4, 2, 0})
	var c virtio.Chain
	for i := range 1<<16 + 100 {
		put16(m.RAM, availAddr+4+2*uint64(i%size), 0)
		put16(m.RAM, availAddr+2, uint16(i+1))
		if !q.Pop(&c) {
			t.Fatalf("chain %d: %v", i, q.Err())
		}
		q.Push(&c, uint32(i))
		slot := usedAddr + 4 + 8*uint64(i%size)
		if got := binary.LittleEndian.Uint32(m.RAM[slot+4:]); got != uint32(i) || get16(m.RAM, usedAddr+2) != uint16(i+1) {
			t.Fatalf("used entry %d is %d, index %d", i, got, get16(m.RAM, usedAddr+2))
		}
		if q.Rearm() || get16(m.RAM, usedAddr+4+8*size) != uint16(i+1) {
			t.Fatalf("avail_event is %d, want %d", get16(m.RAM, usedAddr+4+8*size), uint16(i+1))
		}
	}
}

func TestInterruptSuppression(t *testing.T) {
	for _, tt := range []struct {
		name     string
		features uint64
		flags    uint16 // of the available ring
		event    uint16 // used_event
		start    uint16 // used index before
		pushes   []int  // chains pushed before each question
		want     []bool
	}{
		{"flags ask", 0, 0, 0, 0, []int{1, 1}, []bool{true, true}},
		{"flags forbid", 0, 1, 0, 0, []int{1}, []bool{false}},
		{"nothing new", 0, 0, 0, 0, []int{1, 0}, []bool{true, false}},
		{"flags mean nothing with event index", virtio.FeatureEventIdx, 1, 0, 0, []int{1}, []bool{true}},
		{"event far away", virtio.FeatureEventIdx, 0, 100, 7, []int{1, 1}, []bool{false, false}},
		{"event reached", virtio.FeatureEventIdx, 0, 2, 0, []int{1, 1, 1, 1}, []bool{false, false, true, false}},
		{"event within a batch", virtio.FeatureEventIdx, 0, 3, 0, []int{1, 5}, []bool{false, true}},
		{"across the wrap", virtio.FeatureEventIdx, 0, 0, 0xfffe, []int{1, 1, 1}, []bool{false, false, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := virtiotest.NewMemory(ramSize)
			q, err := virtio.NewQueue(m, virtio.QueueState{QueueConfig: layout, NextAvail: tt.start, NextUsed: tt.start, Signalled: tt.start}, tt.features)
			virtiotest.Must(t, err)
			put16(m.RAM, availAddr, tt.flags)
			put16(m.RAM, availAddr+4+2*size, tt.event)
			var c virtio.Chain
			for i, n := range tt.pushes {
				for range n {
					q.Push(&c, 0)
				}
				if got := q.NeedsInterrupt(); got != tt.want[i] {
					t.Errorf("question %d: %t, want %t", i, got, tt.want[i])
				}
			}
		})
	}
}

func TestEventFieldsLeaveTheirNeighboursAlone(t *testing.T) {
	m := virtiotest.NewMemory(ramSize)
	q := newQueue(t, m, virtio.FeatureEventIdx)
	after := uint64(usedAddr + 4 + 8*size + 2)
	put16(m.RAM, after, 0xbeef)
	offer(m, desc{bufAddr, 1, 0, 0})
	var c virtio.Chain
	q.Pop(&c)
	q.Rearm()
	if got := get16(m.RAM, after); got != 0xbeef {
		t.Errorf("the guest's bytes after avail_event are %#x", got)
	}
}

func TestChainCopies(t *testing.T) {
	m := virtiotest.NewMemory(ramSize)
	q := newQueue(t, m, 0)
	copy(m.RAM[bufAddr:], "abcdefgh")
	offer(m, desc{bufAddr, 3, 1, 1}, desc{0, 0, 1, 2}, desc{bufAddr + 3, 5, 1, 3},
		desc{bufAddr + 0x100, 2, 3, 4}, desc{bufAddr + 0x102, 4, 2, 0})
	var c virtio.Chain
	if !q.Pop(&c) || c.OutLen() != 8 || c.InLen() != 6 {
		t.Fatalf("chain of %d and %d bytes: %v", c.OutLen(), c.InLen(), q.Err())
	}
	for _, tt := range []struct {
		off  uint64
		n    int
		want string
	}{{0, 8, "abcdefgh"}, {2, 3, "cde"}, {3, 5, "defgh"}, {7, 1, "h"}, {8, 0, ""}, {0, 9, "error"}, {9, 0, "error"}, {1 << 63, 1, "error"}} {
		b := make([]byte, tt.n)
		got := "error"
		if c.ReadAt(b, tt.off) == nil {
			got = string(b)
		}
		if got != tt.want {
			t.Errorf("ReadAt(%d, %d) is %q, want %q", tt.off, tt.n, got, tt.want)
		}
	}
	virtiotest.Must(t, c.WriteAt([]byte("XYZ"), 1))
	if got := m.RAM[bufAddr+0x100 : bufAddr+0x106]; !bytes.Equal(got, []byte("\x00XYZ\x00\x00")) {
		t.Errorf("WriteAt left %q", got)
	}
	if c.WriteAt([]byte("12345"), 2) == nil {
		t.Error("WriteAt beyond the chain succeeded")
	}
	if m.Populated.Load() == 0 {
		t.Error("memory was touched without Populate")
	}
	for _, tt := range []struct {
		off, n uint64
		want   string
	}{{0, 8, "abc|defgh|"}, {1, 4, "bc|de|"}, {4, 100, "efgh|"}, {8, 1, ""}, {0, 0, ""}} {
		var got string
		for _, b := range virtio.Slice(nil, c.Out, tt.off, tt.n) {
			if len(b) > 0 {
				got += string(b) + "|"
			}
		}
		if got != tt.want {
			t.Errorf("Slice(%d, %d) is %q, want %q", tt.off, tt.n, got, tt.want)
		}
	}
}

func TestUnpop(t *testing.T) {
	m := virtiotest.NewMemory(ramSize)
	q := newQueue(t, m, 0)
	offer(m, desc{bufAddr, 1, 0, 0})
	var c virtio.Chain
	if !q.Pop(&c) || q.Pop(&c) {
		t.Fatal("one chain was offered")
	}
	q.Unpop(1)
	if q.Empty() || !q.Pop(&c) {
		t.Error("the chain is gone")
	}
	if s := q.State(); s.NextAvail != 1 || s.NextUsed != 0 || s.QueueConfig != layout {
		t.Errorf("state %+v", s)
	}
}
