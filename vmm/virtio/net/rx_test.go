package net_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"cella.dev/cella/vmm/virtio/mmio"
	virtio "cella.dev/cella/vmm/virtio/net"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

func TestFramesWaitForBuffers(t *testing.T) {
	for _, tc := range []struct {
		features uint64
		length   uint32
	}{{all, 2048}, {all | virtiotest.EventIdx, 2048}, {all &^ (merge | guestTSO4 | guestTSO6), 1526}, {mac, 1526}} {
		t.Run(fmt.Sprintf("%#x", tc.features), func(t *testing.T) {
			g := newGuest(t, tc.features, 64)
			at := make(map[uint16]uint64)
			for i := range 100 {
				g.arrive(header(0, 0, 0), append([]byte{byte(i)}, pattern(1000)...))
			}
			for i := range 100 {
				if g.Queues[rx].Free() > 16 {
					maps.Copy(at, g.offer(g.Queues[rx].Free(), tc.length))
				}
				if _, frame := g.receive(at); frame[0] != byte(i) || len(frame) != 1001 {
					t.Fatalf("frame %d of %d bytes in place of %d", frame[0], len(frame), i)
				}
			}
		})
	}
}

func TestAFrameLongerThanTheWholeQueueIsLost(t *testing.T) {
	g := newGuest(t, all, 16)
	at := g.offer(16, 1526)
	g.arrive(header(0, 0, 0), pattern(16*1526-12+1))
	g.arrive(header(0, 0, 0), pattern(16*1526-12))
	if _, frame := g.receive(at); !bytes.Equal(frame, pattern(16*1526-12)) {
		t.Errorf("%d bytes came", len(frame))
	}
	if n := g.dev.Stats.DroppedIn.Load(); n != 1 {
		t.Errorf("%d lost", n)
	}
}

func TestHeaderForADriverWithoutChecksums(t *testing.T) {
	g := newGuest(t, mac|merge, 16)
	at := g.offer(16, 1526)
	g.arrive([]byte{2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9}, pattern(60))
	if h, _ := g.receive(at); !bytes.Equal(h, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}) {
		t.Errorf("header %x", h)
	}
}

func TestABufferWithoutRoomForAHeaderStopsTheDevice(t *testing.T) {
	g := newGuest(t, all, 16)
	g.offer(1, 11)
	<-g.IRQ.C
	if s := g.Read32(0x70); s != 15|64 {
		t.Errorf("status %d, want DEVICE_NEEDS_RESET", s)
	}
	// The driver starts anew.
	virtiotest.Must(t, g.Init(all|virtiotest.Version1, 2, 64))
	at := g.offer(64, 1526)
	g.arrive(header(0, 0, 0), pattern(60))
	if _, frame := g.receive(at); !bytes.Equal(frame, pattern(60)) {
		t.Errorf("%d bytes came after the reset", len(frame))
	}
}

func TestNothingMovesWhilePaused(t *testing.T) {
	g := newGuest(t, all, 64)
	at := g.offer(64, 1526)
	g.transport.Pause()
	before := bytes.Clone(g.Mem.RAM)
	g.arrive(header(0, 0, 0), pattern(60))
	state, err := g.transport.Save()
	virtiotest.Must(t, err)
	again, err := g.transport.Save()
	virtiotest.Must(t, err)
	if !bytes.Equal(state, again) || !bytes.Equal(before, g.Mem.RAM) {
		t.Error("a paused device changed")
	}
	g.transport.Resume()
	if _, frame := g.receive(at); !bytes.Equal(frame, pattern(60)) {
		t.Errorf("%d bytes came after the pause", len(frame))
	}
}

func TestRestoredCardGoesOn(t *testing.T) {
	g := newGuest(t, all, 64)
	at := g.offer(64, 1526)
	g.arrive(header(0, 0, 0), pattern(3000))
	g.receive(at)
	g.transport.Pause()
	state, err := g.transport.Save()
	virtiotest.Must(t, err)

	dev, wire := newCard(t)
	clone := &guest{Driver: g.Driver, tb: t, dev: dev, transport: mmio.New(g.Mem, dev, g.IRQ), wire: wire}
	t.Cleanup(clone.transport.Close)
	clone.transport.Pause()
	virtiotest.Must(t, clone.transport.Restore(state))
	clone.Bus = clone.transport
	clone.arrive(header(0, 0, 0), pattern(2000))
	clone.transport.Resume()
	clone.transport.Kick()
	maps.Copy(at, clone.offer(clone.Queues[rx].Free(), 1526))
	if _, frame := clone.receive(at); !bytes.Equal(frame, pattern(2000)) {
		t.Errorf("%d bytes came", len(frame))
	}
	if got := clone.transmit(header(0, 0, 0), pattern(100)); !bytes.Equal(got[12:], pattern(100)) {
		t.Errorf("%d bytes went", len(got))
	}
}

func TestRestoreRefusesAnotherCard(t *testing.T) {
	dev, _ := newCard(t)
	state, err := dev.Save()
	virtiotest.Must(t, err)
	if want := append([]byte{1}, 2, 0, 0, 0, 0, 7, 0xdc, 5); !bytes.Equal(state, want) {
		t.Fatalf("state %x, want %x", state, want)
	}
	for want, state := range map[string][]byte{
		"network card state of 0 bytes is not version 1":                               {},
		"network card state of 9 bytes is not version 1":                               {2, 2, 0, 0, 0, 0, 7, 0xdc, 5},
		"network card has MAC 02:00:00:00:00:07, the snapshot's had 02:00:00:00:00:08": {1, 2, 0, 0, 0, 0, 8, 0xdc, 5},
		"network card has MTU 1500, the snapshot's had 1499":                           {1, 2, 0, 0, 0, 0, 7, 0xdb, 5},
	} {
		if err := dev.Restore(state); err == nil || err.Error() != want {
			t.Errorf("restore of %x: %v, want %q", state, err, want)
		}
	}
}

func TestACardWithoutACable(t *testing.T) {
	dev, err := virtio.New(nil, virtio.Config{MAC: guestMAC})
	virtiotest.Must(t, err)
	mem, irq := virtiotest.NewMemory(1<<23), virtiotest.NewInterrupt()
	transport := mmio.New(mem, dev, irq)
	g := &guest{Driver: virtiotest.NewDriver(transport, mem, irq, 0x1000), tb: t, dev: dev, transport: transport}
	virtiotest.Must(t, g.Init(all|virtiotest.Version1, 2, 16))
	g.offer(16, 1526)
	g.put(header(0, 0, 0), pattern(60))
	if n := dev.Stats.DroppedOut.Load(); n != 1 {
		t.Errorf("%d frames lost", n)
	}
	transport.Close()
	virtiotest.Must(t, dev.Close())
}
