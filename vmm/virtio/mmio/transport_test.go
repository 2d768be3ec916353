package mmio_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"cella.dev/cella/vmm/virtio"
	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// echo is a device with two queues that answers each chain with the bytes it holds.
type echo struct {
	backend   virtio.Backend
	activated int
	resets    int
	notified  []int
	config    [8]byte
	fail      error
	state     []byte
}

const echoFeature = 1 << 3

func (d *echo) Type() uint32               { return 42 }
func (d *echo) Features() uint64           { return echoFeature }
func (d *echo) QueueSizes() []uint16       { return []uint16{256, 16} }
func (d *echo) Reset()                     { d.resets++; d.backend = virtio.Backend{} }
func (d *echo) Save() ([]byte, error)      { return d.state, d.fail }
func (d *echo) Restore(state []byte) error { d.state = bytes.Clone(state); return d.fail }
func (d *echo) ReadConfig(off uint64, p []byte) {
	clear(p)
	if off < uint64(len(d.config)) {
		copy(p, d.config[off:])
	}
}
func (d *echo) WriteConfig(off uint64, p []byte) {
	if off < uint64(len(d.config)) {
		copy(d.config[off:], p)
	}
}
func (d *echo) Activate(b virtio.Backend) error {
	d.activated++
	d.backend = b
	return d.fail
}
func (d *echo) Notify(queue int) {
	d.notified = append(d.notified, queue)
	q := d.backend.Queues[queue]
	var c virtio.Chain
	for {
		for q.Pop(&c) {
			b := make([]byte, min(c.OutLen(), c.InLen()))
			if c.ReadAt(b, 0) != nil || c.WriteAt(b, 0) != nil {
				panic("chain shorter than it says")
			}
			q.Push(&c, uint32(len(b)))
		}
		if !q.Rearm() {
			break
		}
	}
	d.backend.Interrupt(queue)
}

func newDriver(dev virtio.Device) (*virtiotest.Driver, *mmio.Transport) {
	mem, irq := virtiotest.NewMemory(1<<20), virtiotest.NewInterrupt()
	t := mmio.New(mem, dev, irq)
	return virtiotest.NewDriver(t, mem, irq, 0x1000), t
}

func TestIdentity(t *testing.T) {
	d, tr := newDriver(&echo{})
	for _, tt := range []struct {
		offset uint64
		want   uint32
	}{
		{0x00, 0x74726976}, {0x04, 2}, {0x08, 42}, {0x0c, 0x414c4543}, {0x60, 0}, {0x70, 0}, {0xfc, 0},
		{0xb0, 0xffffffff}, {0xb4, 0xffffffff}, {0xb8, 0xffffffff}, {0xbc, 0xffffffff}, {0x44, 0},
	} {
		if got := d.Read32(tt.offset); got != tt.want {
			t.Errorf("register %#x is %#x, want %#x", tt.offset, got, tt.want)
		}
	}
	for sel, want := range []uint32{256, 16, 0} {
		d.Write32(0x30, uint32(sel))
		if got := d.Read32(0x34); got != want {
			t.Errorf("QueueNumMax of queue %d is %d, want %d", sel, got, want)
		}
	}
	for sel, want := range []uint32{3<<28 | echoFeature, 1, 0, 0} {
		d.Write32(0x14, uint32(sel))
		if got := d.Read32(0x10); got != want {
			t.Errorf("features word %d is %#x, want %#x", sel, got, want)
		}
	}
	if tr.QueueCount() != 2 {
		t.Errorf("QueueCount is %d, want 2", tr.QueueCount())
	}
}

func TestAccessesTheSpecForbids(t *testing.T) {
	d, tr := newDriver(&echo{config: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}})
	for _, tt := range []struct {
		name   string
		offset uint64
		n      int
	}{{"a byte", 0, 1}, {"two bytes", 0, 2}, {"eight bytes", 0, 8}, {"unaligned", 2, 4}, {"a hole", 0x40, 4}, {"write-only", 0x50, 4}} {
		b := bytes.Repeat([]byte{0xff}, tt.n)
		tr.Read(tt.offset, b)
		if !bytes.Equal(b, make([]byte, tt.n)) {
			t.Errorf("%s reads %x, want zeros", tt.name, b)
		}
	}
	if n := tr.Stats.BadAccess.Load(); n != 6 {
		t.Errorf("%d bad accesses counted, want 6", n)
	}
	for _, n := range []int{1, 2, 4, 8} {
		if got, want := d.Config(0, n), []byte{1, 2, 3, 4, 5, 6, 7, 8}[:n]; !bytes.Equal(got, want) {
			t.Errorf("config of %d bytes is %x, want %x", n, got, want)
		}
	}
	tr.Write(0x104, []byte{9})
	if got := d.Config(4, 1)[0]; got != 9 {
		t.Errorf("config byte is %d after writing 9", got)
	}
}

func TestStatusSequence(t *testing.T) {
	const all = echoFeature | virtiotest.Version1
	for _, tt := range []struct {
		name     string
		features uint64
		writes   []uint32
		want     uint32
	}{
		{"in order", all, []uint32{1, 3, 11}, 11},
		{"no version 1", echoFeature, []uint32{1, 3, 11}, 3},
		{"a feature not offered", all | 1<<4, []uint32{1, 3, 11}, 3},
		{"driver before acknowledge", all, []uint32{2}, 0},
		{"all at once", all, []uint32{15}, 3}, // features were not written in time
		{"driver ok without features ok", all, []uint32{1, 3, 7}, 3},
		{"taking a bit back", all, []uint32{1, 3, 1}, 3},
		{"failed", all, []uint32{1, 3, 131, 11}, 131},
		{"reset", all, []uint32{1, 3, 11, 0}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, _ := newDriver(&echo{})
			for _, v := range tt.writes {
				if v&8 != 0 {
					d.Write32(0x24, 1)
					d.Write32(0x20, uint32(tt.features>>32))
					d.Write32(0x24, 0)
					d.Write32(0x20, uint32(tt.features))
				}
				d.Write32(0x70, v)
			}
			if got := d.Read32(0x70); got != tt.want {
				t.Errorf("status is %d, want %d", got, tt.want)
			}
		})
	}
}

func TestFeaturesAreFixedByFeaturesOK(t *testing.T) {
	dev := &echo{}
	d, _ := newDriver(dev)
	virtiotest.Must(t, d.Negotiate(virtiotest.Version1))
	d.Write32(0x20, echoFeature)
	d.Write32(0x70, 15)
	if got := dev.backend.Features; got != virtiotest.Version1 {
		t.Errorf("device was activated with %#x, want VERSION_1 alone", got)
	}
}

func TestQueueSetUp(t *testing.T) {
	d, _ := newDriver(&echo{})
	virtiotest.Must(t, d.Negotiate(virtiotest.Version1))
	d.Write32(0x30, 1)
	for _, n := range []uint32{0, 3, 17, 32, 1 << 16} {
		d.Write32(0x38, n)
	}
	d.Write32(0x44, 1)
	if got := d.Read32(0x44); got != 1 {
		t.Errorf("QueueReady is %d, want 1", got)
	}
	d.Write32(0x70, 15)
	if got := d.Read32(0x70); got != 15|64 {
		t.Errorf("status is %d for a queue that never got a valid size, want DEVICE_NEEDS_RESET", got)
	}
	if got := d.Read32(0x60); got != 2 {
		t.Errorf("interrupt status %d, want a configuration change", got)
	}
	d.Write32(0x70, 0)
	if d.Read32(0x44) != 0 || d.Read32(0x70) != 0 || d.Read32(0x60) != 0 {
		t.Error("reset left state behind")
	}
}

// roundTrip sends data through a queue and returns what came back.
func roundTrip(t *testing.T, d *virtiotest.Driver, q *virtiotest.Ring, data []byte) []byte {
	t.Helper()
	out, in := d.Alloc(len(data)), d.Alloc(len(data))
	copy(d.Mem.RAM[out:], data)
	n := uint32(len(data))
	q.Arm()
	head := q.Add(virtiotest.Buffer{Addr: out, Len: n / 2}, virtiotest.Buffer{Addr: out + uint64(n/2), Len: n - n/2},
		virtiotest.Buffer{Addr: in, Len: 1, Write: true}, virtiotest.Buffer{Addr: in + 1, Len: n - 1, Write: true})
	q.Kick()
	u, ok := q.Take()
	if !ok || u.Head != head || u.Len != n {
		t.Fatalf("used %+v, %t, want head %d with %d bytes", u, ok, head, n)
	}
	return d.Mem.RAM[in : in+uint64(n)]
}

func TestDataPath(t *testing.T) {
	for _, features := range []uint64{0, virtiotest.Indirect, virtiotest.EventIdx, virtiotest.Indirect | virtiotest.EventIdx} {
		d, _ := newDriver(&echo{})
		virtiotest.Must(t, d.Init(virtiotest.Version1|features, 2, 16))
		// 70,000 would wrap the 16-bit indices; that is TestIndicesWrap in the queue's package.
		for i := range 100 {
			msg := binary.BigEndian.AppendUint64([]byte("message"), uint64(i))
			if got := roundTrip(t, d, d.Queues[i%2], msg); !bytes.Equal(got, msg) {
				t.Fatalf("features %#x: message %d came back as %x", features, i, got)
			}
			if s := d.Ack(); s != 1 {
				t.Fatalf("features %#x: interrupt status %d, want 1", features, s)
			}
			if s := d.Read32(0x60); s != 0 {
				t.Fatalf("interrupt status %d after acknowledging", s)
			}
		}
		if n := d.IRQ.Count.Load(); n != 100 {
			t.Errorf("features %#x: %d interrupts, want 100", features, n)
		}
	}
}

func TestNotifyBeforeDriverOK(t *testing.T) {
	dev := &echo{}
	d, tr := newDriver(dev)
	d.Write32(0x50, 0)
	tr.Notify(1)
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	for _, q := range []int{-1, 2, 1 << 30} {
		tr.Notify(q)
	}
	if len(dev.notified) != 0 {
		t.Errorf("device was notified of %v, want nothing", dev.notified)
	}
}

func TestMalformedRingAsksForReset(t *testing.T) {
	dev := &echo{}
	d, tr := newDriver(dev)
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	d.Queues[0].SetAvailIndex(17)
	tr.Notify(0)
	if got := d.Read32(0x70); got != 15|64 {
		t.Errorf("status is %d, want DEVICE_NEEDS_RESET", got)
	}
	if got := d.Ack(); got != 2 {
		t.Errorf("interrupt status %d, want a configuration change", got)
	}
	if err := tr.Err(); !errors.Is(err, virtio.ErrMalformed) {
		t.Errorf("error %v, want ErrMalformed", err)
	}
	tr.Notify(0)
	tr.Notify(1)
	if tr.Stats.Malformed.Load() != 1 || d.IRQ.Count.Load() != 1 || len(dev.notified) != 1 {
		t.Errorf("malformed %d, interrupts %d, notifications %v: want one of each", tr.Stats.Malformed.Load(),
			d.IRQ.Count.Load(), dev.notified)
	}
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	if got := roundTrip(t, d, d.Queues[0], []byte("again")); string(got) != "again" {
		t.Errorf("after a reset: %q", got)
	}
}

func TestDisabledQueueIsLeftAlone(t *testing.T) {
	d, tr := newDriver(&echo{})
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	d.Write32(0x30, 0)
	d.Write32(0x44, 0)
	buf := d.Alloc(16)
	d.Queues[0].Add(virtiotest.Buffer{Addr: buf, Len: 8}, virtiotest.Buffer{Addr: buf, Len: 8, Write: true})
	tr.Notify(0)
	if _, ok := d.Queues[0].Take(); ok || d.Read32(0x44) != 0 {
		t.Error("a queue with QueueReady 0 was used")
	}
}

func TestFailedActivation(t *testing.T) {
	dev := &echo{fail: errors.New("no")}
	d, tr := newDriver(dev)
	if err := d.Init(virtiotest.Version1, 2, 16); err == nil {
		t.Error("the driver did not see that the device failed")
	}
	tr.Notify(0)
	if len(dev.notified) != 0 || tr.Active() {
		t.Error("a device that failed to activate was used")
	}
}
