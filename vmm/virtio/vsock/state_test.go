package vsock

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// snapshot saves the guest's device and memory, ends the old device, and goes on with a restored one.
func (g *guest) snapshot() {
	g.tb.Helper()
	state, err := g.tr.Save()
	virtiotest.Must(g.tb, err)
	old := g.dev
	g.Mem = &virtiotest.Memory{RAM: bytes.Clone(g.Mem.RAM)}
	old.CloseAll()
	g.dev, g.IRQ = New(guestCID), virtiotest.NewInterrupt()
	g.tr = mmio.New(g.Mem, g.dev, g.IRQ)
	virtiotest.Must(g.tb, g.tr.Restore(state))
	g.Bus = g.tr
}

func TestRestoreWithoutConnectionsSaysNothing(t *testing.T) {
	g := newGuest(t).up(32).listen()
	c, s := g.connect()
	s.send(opShutdown, shutdownBoth, "")
	g.expect(opRST)
	c.eof()
	g.idle()
	host := s.host
	g.Ack()
	g.snapshot()
	g.listen()
	g.tr.Kick()
	if _, ok := g.Queues[queueEvent].Take(); ok || g.dev.Stats.TransportResets.Load() != 0 || g.IRQ.Count.Load() != 0 {
		t.Error("a guest without connections was disturbed")
	}
	c, s = g.connect()
	c.write("works")
	if got := s.data(5); got != "works" {
		t.Errorf("guest got %q", got)
	}
	if s.host != host+1 {
		t.Errorf("host port %d after %d: ports start over after a restore", s.host, host)
	}
}

func TestRestoreWithConnectionsResetsTheTransportFirst(t *testing.T) {
	g := newGuest(t).up(32).listen()
	_, old := g.connect()
	g.snapshot()
	g.listen()
	g.tr.Kick()
	c := g.dial("early")
	// The request must not overtake the event, nor may the answer to a packet of the old connection.
	old.send(opRW, 0, "from before")
	events := g.Queues[queueEvent]
	for {
		u, ok := events.Take()
		if ok {
			if u.Len != 4 {
				t.Errorf("event of %d bytes", u.Len)
			}
			break
		}
		g.wait()
	}
	g.silent()
	// Giving the event's buffer back is what says that the event was taken.
	events.Add(virtiotest.Buffer{Addr: g.Alloc(8), Len: 4, Write: true})
	if !events.Kick() {
		t.Fatal("the device does not want to hear of the event buffer")
	}
	if p := g.expect(opRST); p.dstPort != old.port || p.srcPort != old.host {
		t.Errorf("RST of ports %d, %d", p.srcPort, p.dstPort)
	}
	s := g.answer()
	c.line(fmt.Sprintf("OK %d", s.host))
	if got := s.data(5); got != "early" {
		t.Errorf("guest got %q", got)
	}
	if n := g.dev.Stats.TransportResets.Load(); n != 1 {
		t.Errorf("%d transport resets, want 1", n)
	}
}

func TestSnapshotBeforeTheResetWasTakenSendsItAgain(t *testing.T) {
	g := newGuest(t).up(32).listen()
	g.connect()
	g.snapshot()
	g.tr.Kick()
	g.snapshot()
	g.tr.Kick()
	if n := g.dev.Stats.TransportResets.Load(); n != 1 {
		t.Errorf("%d transport resets after the second restore, want 1", n)
	}
}

func TestResetWaitsForAnEventBuffer(t *testing.T) {
	g := newGuest(t)
	virtiotest.Must(t, g.Init(features, 3, 256))
	g.buffers, g.txBuf = map[uint16]uint64{}, map[uint16]uint64{}
	g.txFree = append(g.txFree, g.Alloc(1024), g.Alloc(1024))
	g.addBuffers(8)
	g.listen()
	g.dial("")
	g.answer()
	g.snapshot()
	g.tr.Kick()
	if n := g.dev.Stats.TransportResets.Load(); n != 0 {
		t.Fatal("an event was sent without a buffer")
	}
	events := g.Queues[queueEvent]
	buf := virtiotest.Buffer{Addr: g.Alloc(8), Len: 4, Write: true}
	events.Add(buf)
	if !events.Kick() {
		t.Fatal("the device does not want to hear of event buffers")
	}
	if _, ok := events.Take(); !ok {
		t.Fatal("no event")
	}
	events.Add(buf)
	if !events.Kick() {
		t.Fatal("the device does not want to hear that the event was taken")
	}
	g.listen()
	g.connect()
}

func TestRestoreRefuses(t *testing.T) {
	good, err := New(guestCID).Save()
	virtiotest.Must(t, err)
	for _, tt := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"nothing", func([]byte) []byte { return nil }},
		{"a cut state", func(b []byte) []byte { return b[:len(b)-1] }},
		{"another version", func(b []byte) []byte { b[0]++; return b }},
		{"another CID", func(b []byte) []byte { b[1]++; return b }},
		{"a port below the first", func(b []byte) []byte { b[12] = 0; return b }},
		{"a port beyond the last", func(b []byte) []byte { b[12] = 0x80; return b }},
	} {
		if err := New(guestCID).Restore(tt.change(bytes.Clone(good))); err == nil {
			t.Errorf("%s was accepted", tt.name)
		}
	}
	virtiotest.Must(t, New(guestCID).Restore(good))
}

func TestGuestConnectsToAHandler(t *testing.T) {
	g := newGuest(t)
	ours := make(chan *net.UnixConn, 1)
	g.dev.Accept(func(port uint32) (*net.UnixConn, error) {
		if port != 80 {
			return nil, fmt.Errorf("nothing on port %d", port)
		}
		a, b, err := socketPair()
		if err == nil {
			ours <- a
		}
		return b, err
	})
	g.up(16)
	s := &stream{g: g, port: 5000, host: 81, bufLen: 1 << 16}
	s.send(opRequest, 0, "")
	g.expect(opRST)
	s.host = 80
	s.send(opRequest, 0, "")
	g.expect(opResponse)
	c := <-ours
	defer c.Close()
	s.send(opRW, 0, "hello")
	b := make([]byte, 5)
	if _, err := c.Read(b); err != nil || string(b) != "hello" {
		t.Errorf("host got %q, %v", b, err)
	}
	if _, err := c.Write([]byte("world")); err != nil {
		t.Error(err)
	}
	if got := s.data(5); got != "world" {
		t.Errorf("guest got %q", got)
	}
}

func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}
