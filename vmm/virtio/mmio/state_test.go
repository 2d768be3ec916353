package mmio_test

import (
	"bytes"
	"testing"

	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// move saves a driver's device and gives the driver a restored one on the same memory.
func move(t *testing.T, d *virtiotest.Driver, from *mmio.Transport, to *echo) *mmio.Transport {
	t.Helper()
	state, err := from.Save()
	virtiotest.Must(t, err)
	d.IRQ = virtiotest.NewInterrupt()
	tr := mmio.New(d.Mem, to, d.IRQ)
	virtiotest.Must(t, tr.Restore(state))
	d.Bus = tr
	return tr
}

func TestRestoredDeviceGoesOn(t *testing.T) {
	for _, features := range []uint64{0, virtiotest.EventIdx | virtiotest.Indirect} {
		d, tr := newDriver(&echo{state: []byte("device state")})
		virtiotest.Must(t, d.Init(virtiotest.Version1|echoFeature|features, 2, 16))
		for i := range 5 {
			roundTrip(t, d, d.Queues[0], []byte{byte(i), 2})
			d.Ack()
			to := &echo{}
			tr = move(t, d, tr, to)
			if string(to.state) != "device state" || to.activated != 1 {
				t.Fatalf("device restored with %q, activated %d times", to.state, to.activated)
			}
			if got := to.backend.Features; got != virtiotest.Version1|echoFeature|features {
				t.Fatalf("restored with features %#x", got)
			}
			if d.IRQ.Count.Load() != 0 {
				t.Fatal("a restore raised an interrupt before Kick")
			}
			tr.Kick()
			if d.IRQ.Count.Load() != 0 {
				t.Fatal("Kick raised an interrupt though none was pending")
			}
			if got := roundTrip(t, d, d.Queues[1], []byte("hello")); string(got) != "hello" {
				t.Fatalf("after restore %d: %q", i, got)
			}
			if d.Ack() != 1 || d.IRQ.Count.Load() != 1 {
				t.Fatal("no interrupt after a restore")
			}
		}
	}
}

func TestKickMakesUpForWhatTheSnapshotCutOff(t *testing.T) {
	d, tr := newDriver(&echo{})
	virtiotest.Must(t, d.Init(virtiotest.Version1|virtiotest.EventIdx, 2, 16))
	roundTrip(t, d, d.Queues[0], []byte("an interrupt nobody acknowledged"))
	buf := d.Alloc(16)
	d.Queues[1].Add(virtiotest.Buffer{Addr: buf, Len: 8}, virtiotest.Buffer{Addr: buf, Len: 8, Write: true})
	tr = move(t, d, tr, &echo{})
	if _, ok := d.Queues[1].Take(); ok {
		t.Fatal("the queue was processed before Kick")
	}
	tr.Kick()
	if _, ok := d.Queues[1].Take(); !ok {
		t.Error("the notification on its way was lost")
	}
	if d.Read32(0x60) != 1 || d.IRQ.Count.Load() != 1 {
		t.Errorf("interrupt status %d, %d interrupts: want the pending one again", d.Read32(0x60), d.IRQ.Count.Load())
	}
}

func TestRestoreOfADeviceInSetUp(t *testing.T) {
	d, tr := newDriver(&echo{})
	virtiotest.Must(t, d.Negotiate(virtiotest.Version1))
	d.Write32(0x30, 1)
	to := &echo{}
	tr = move(t, d, tr, to)
	if to.activated != 0 || tr.Active() || d.Read32(0x70) != 11 || d.Read32(0x34) != 16 {
		t.Errorf("activated %d, status %d, QueueNumMax %d", to.activated, d.Read32(0x70), d.Read32(0x34))
	}
}

func TestRestoreRefuses(t *testing.T) {
	d, tr := newDriver(&echo{})
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	good, err := tr.Save()
	virtiotest.Must(t, err)
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for _, tt := range []struct {
		name  string
		state []byte
	}{
		{"nothing", nil},
		{"a cut header", good[:20]},
		{"cut queues", good[:len(good)-1]},
		{"another version", change(0, 2)},
		{"another number of queues", change(1, 3)},
		{"another type", change(2, 2)},
		{"a feature not offered", change(26, 0x80)},
		{"a queue of size 3", change(30, 3)},
		{"a queue outside RAM", change(40, 0xff)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			to := mmio.New(d.Mem, &echo{}, d.IRQ)
			if err := to.Restore(tt.state); err == nil {
				t.Error("restore succeeded")
			}
			if to.Active() {
				t.Error("the device is active")
			}
		})
	}
	if err := tr.Restore(good); err == nil {
		t.Error("an active transport was overwritten")
	}
}

func TestPausedDeviceStandsStill(t *testing.T) {
	dev := &echo{}
	d, tr := newDriver(dev)
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	buf := d.Alloc(16)
	d.Queues[0].Add(virtiotest.Buffer{Addr: buf, Len: 8}, virtiotest.Buffer{Addr: buf, Len: 8, Write: true})
	tr.Pause()
	before, err := tr.Save()
	virtiotest.Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tr.Notify(0)
	}()
	after, err := tr.Save()
	virtiotest.Must(t, err)
	if _, used := d.Queues[0].Take(); used || !bytes.Equal(before, after) {
		t.Error("a paused device used a buffer")
	}
	tr.Resume()
	<-done
	if _, used := d.Queues[0].Take(); !used {
		t.Error("the notification was lost")
	}
}

func TestClosedDeviceTouchesNothing(t *testing.T) {
	dev := &echo{}
	d, tr := newDriver(dev)
	virtiotest.Must(t, d.Init(virtiotest.Version1, 2, 16))
	buf := d.Alloc(16)
	d.Queues[0].Add(virtiotest.Buffer{Addr: buf, Len: 8}, virtiotest.Buffer{Addr: buf, Len: 8, Write: true})
	tr.Pause()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tr.Notify(0)
	}()
	tr.Close()
	<-done
	if _, used := d.Queues[0].Take(); used || dev.resets != 2 { // one by the driver, one by Close
		t.Errorf("a buffer was used: %t; %d resets", used, dev.resets)
	}
	if err := d.Init(virtiotest.Version1, 2, 16); err == nil || dev.activated != 1 {
		t.Errorf("a closed device was activated: %v", err)
	}
}
