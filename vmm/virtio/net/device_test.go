package net_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio/mmio"
	virtio "cella.dev/cella/vmm/virtio/net"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// Feature bits (virtio 1.2 §5.1.3).
const (
	csum      = 1 << 0
	guestCSum = 1 << 1
	mtu       = 1 << 3
	mac       = 1 << 5
	guestTSO4 = 1 << 7
	guestTSO6 = 1 << 8
	hostTSO4  = 1 << 11
	hostTSO6  = 1 << 12
	merge     = 1 << 15
	status    = 1 << 16

	all = csum | guestCSum | mtu | mac | guestTSO4 | guestTSO6 | hostTSO4 | hostTSO6 | merge | status

	rx, tx  = 0, 1
	hdrSize = 12
	// patience bounds every wait.
	patience = 10 * time.Second
)

var guestMAC = []byte{2, 0, 0, 0, 0, 7}

// guest is a network card with a driver; wire is where its frames go to and come from.
type guest struct {
	*virtiotest.Driver
	tb        testing.TB
	dev       *virtio.Device
	transport *mmio.Transport
	wire      int
}

// newCard returns a card and the other end of its wire.
func newCard(tb testing.TB) (*virtio.Device, int) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	virtiotest.Must(tb, err)
	for _, fd := range fds {
		virtiotest.Must(tb, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20))
	}
	virtiotest.Must(tb, unix.SetNonblock(fds[0], true))
	virtiotest.Must(tb, unix.SetsockoptTimeval(fds[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	file := os.NewFile(uintptr(fds[0]), "wire")
	dev, err := virtio.New(file, virtio.Config{MAC: guestMAC})
	virtiotest.Must(tb, err)
	tb.Cleanup(func() {
		virtiotest.Must(tb, dev.Close())
		file.Close()
		unix.Close(fds[1])
	})
	return dev, fds[1]
}

func newGuest(tb testing.TB, features uint64, size uint16) *guest {
	tb.Helper()
	dev, wire := newCard(tb)
	mem, irq := virtiotest.NewMemory(1<<23), virtiotest.NewInterrupt()
	transport := mmio.New(mem, dev, irq)
	tb.Cleanup(transport.Close)
	g := &guest{Driver: virtiotest.NewDriver(transport, mem, irq, 0x1000), tb: tb, dev: dev, transport: transport, wire: wire}
	virtiotest.Must(tb, g.Init(features|virtiotest.Version1, 2, size))
	return g
}

// offer makes n receive buffers of the given length available and returns their addresses by head.
func (g *guest) offer(n int, length uint32) map[uint16]uint64 {
	g.tb.Helper()
	at := make(map[uint16]uint64)
	for range n {
		addr := g.Alloc(int(length))
		for i := range length {
			g.Mem.RAM[addr+uint64(i)] = 0xee
		}
		at[g.Queues[rx].Add(virtiotest.Buffer{Addr: addr, Len: length, Write: true})] = addr
	}
	g.Queues[rx].Kick()
	return at
}

// arrive puts a frame onto the wire.
func (g *guest) arrive(header, frame []byte) {
	g.tb.Helper()
	_, err := unix.Write(g.wire, append(bytes.Clone(header), frame...))
	virtiotest.Must(g.tb, err)
}

// take waits for the next used receive buffer.
func (g *guest) take() virtiotest.Used {
	g.tb.Helper()
	limit := time.After(patience)
	for {
		if u, ok := g.Queues[rx].Take(); ok {
			return u
		}
		if g.Queues[rx].Arm() {
			continue
		}
		select {
		case <-g.IRQ.C:
			g.Ack()
		case <-limit:
			g.tb.Fatal("no frame came")
		}
	}
}

// receive takes one frame, and checks that its header says how many buffers it lies in.
func (g *guest) receive(at map[uint16]uint64) (header, frame []byte) {
	g.tb.Helper()
	var all []byte
	for n := 1; n > 0; n-- {
		u := g.take()
		all = append(all, g.Mem.RAM[at[u.Head]:][:u.Len]...)
		if header == nil {
			header = all[:hdrSize]
			n = int(binary.LittleEndian.Uint16(all[10:]))
		}
	}
	return all[:hdrSize], all[hdrSize:]
}

// transmit sends chains of one frame each as they are, and returns what came out at the wire.
func (g *guest) transmit(bufs ...[]byte) []byte {
	g.tb.Helper()
	g.put(bufs...)
	out := make([]byte, 1<<17)
	n, err := unix.Read(g.wire, out)
	virtiotest.Must(g.tb, err)
	return out[:n]
}

func (g *guest) put(bufs ...[]byte) {
	g.tb.Helper()
	var chain []virtiotest.Buffer
	for _, b := range bufs {
		addr := g.Alloc(len(b))
		copy(g.Mem.RAM[addr:], b)
		chain = append(chain, virtiotest.Buffer{Addr: addr, Len: uint32(len(b))})
	}
	head := g.Queues[tx].Add(chain...)
	g.Queues[tx].Kick()
	if u, ok := g.Queues[tx].Take(); !ok || u.Head != head || u.Len != 0 {
		g.tb.Fatalf("used %+v, %t, want head %d and no bytes written", u, ok, head)
	}
}

func header(flags, gso byte, size uint16) []byte {
	b := []byte{flags, gso, 54, 0, byte(size), byte(size >> 8), 34, 0, 16, 0, 0, 0}
	return b
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestConfigurationSpace(t *testing.T) {
	g := newGuest(t, all, 16)
	want := []byte{2, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0xdc, 5, 0, 0, 0, 0}
	if got := g.Config(0, 16); !bytes.Equal(got, want) {
		t.Errorf("configuration space %x, want %x", got, want)
	}
	if got := g.Config(4094, 2); !bytes.Equal(got, []byte{0, 0}) {
		t.Errorf("beyond its end: %x", got)
	}
	if got := g.Offered() & (1<<28 - 1); got != all {
		t.Errorf("features %#x, want %#x", got, uint64(all))
	}
}

func TestUnusableCards(t *testing.T) {
	r, w, err := os.Pipe()
	virtiotest.Must(t, err)
	defer r.Close()
	defer w.Close()
	plain, err := os.Open("/dev/null")
	virtiotest.Must(t, err)
	defer plain.Close()
	for name, tc := range map[string]struct {
		file *os.File
		cfg  virtio.Config
		want string
	}{
		"no MAC":        {r, virtio.Config{}, `network card: "" is not the MAC address of one station`},
		"a group's MAC": {r, virtio.Config{MAC: []byte{1, 0, 0, 0, 0, 0}}, `network card: "01:00:00:00:00:00" is not the MAC address of one station`},
		"tiny MTU":      {r, virtio.Config{MAC: guestMAC, MTU: 67}, "network card: MTU 67 is out of range 68 to 65535"},
		"not pollable": {plain, virtio.Config{MAC: guestMAC},
			"network card: /dev/null can't be waited for (open it with O_NONBLOCK): file type does not support deadline"},
	} {
		if _, err := virtio.New(tc.file, tc.cfg); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestTransmit(t *testing.T) {
	frame := pattern(1514)
	for _, features := range []uint64{all, all | virtiotest.EventIdx | virtiotest.Indirect} {
		g := newGuest(t, features, 16)
		for name, bufs := range map[string][][]byte{
			"header and frame apart":     {header(0, 0, 0), frame},
			"in one buffer":              {append(header(0, 0, 0), frame...)},
			"cut inside of the header":   {header(0, 0, 0)[:5], append(header(0, 0, 0)[5:], frame[:9]...), frame[9:100], frame[100:]},
			"an empty buffer in between": {header(0, 0, 0), {}, frame},
		} {
			if got := g.transmit(bufs...); !bytes.Equal(got, append(header(0, 0, 0), frame...)) {
				t.Errorf("%s: %d bytes came out", name, len(got))
			}
		}
		big := pattern(65550)
		if got := g.transmit(header(1, 1, 1448), big); !bytes.Equal(got, append(header(1, 1, 1448), big...)) {
			t.Errorf("the longest frame: %d bytes came out", len(got))
		}
		if n, b := g.dev.Stats.FramesOut.Load(), g.dev.Stats.BytesOut.Load(); n != 5 || b != 4*1514+65550 {
			t.Errorf("%d frames, %d bytes counted", n, b)
		}
	}
}

func TestTransmitRefusesWhatIsNoFrame(t *testing.T) {
	long := pattern(65551)
	for name, tc := range map[string]struct {
		features uint64
		bufs     [][]byte
	}{
		"no header":                    {all, [][]byte{pattern(11)}},
		"no frame":                     {all, [][]byte{header(0, 0, 0)}},
		"less than an Ethernet header": {all, [][]byte{header(0, 0, 0), pattern(13)}},
		"too long":                     {all, [][]byte{header(0, 0, 0), long}},
		"unknown flag":                 {all, [][]byte{header(2, 0, 0), pattern(60)}},
		"UDP fragmentation":            {all, [][]byte{header(1, 3, 1448), pattern(60)}},
		"UDP segmentation":             {all, [][]byte{header(1, 5, 1448), pattern(60)}},
		"with ECN":                     {all, [][]byte{header(1, 0x81, 1448), pattern(60)}},
		"segments without checksum":    {all, [][]byte{header(0, 1, 1448), pattern(60)}},
		"checksum not negotiated":      {mac, [][]byte{header(1, 0, 0), pattern(60)}},
		"TSO not negotiated":           {mac | csum | hostTSO6, [][]byte{header(1, 1, 1448), pattern(60)}},
		"TSO6 not negotiated":          {mac | csum | hostTSO4, [][]byte{header(1, 4, 1448), pattern(60)}},
	} {
		g := newGuest(t, tc.features, 16)
		g.put(tc.bufs...)
		if n := g.dev.Stats.Malformed.Load(); n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
		// The wire carried nothing: the next frame is the first.
		if got := g.transmit(header(0, 0, 0), pattern(60)); !bytes.Equal(got[hdrSize:], pattern(60)) {
			t.Errorf("%s: %d bytes came out", name, len(got))
		}
	}
}

func TestAFullWireLosesFrames(t *testing.T) {
	g := newGuest(t, all, 16)
	frame := append(header(0, 0, 0), pattern(60000)...)
	addr := g.Alloc(len(frame))
	copy(g.Mem.RAM[addr:], frame)
	for range 400 {
		g.Queues[tx].Add(virtiotest.Buffer{Addr: addr, Len: uint32(len(frame))})
		g.Queues[tx].Kick()
		if _, ok := g.Queues[tx].Take(); !ok {
			t.Fatal("a frame was kept")
		}
	}
	s := &g.dev.Stats
	if s.DroppedOut.Load() == 0 || s.DroppedOut.Load()+s.FramesOut.Load() != 400 {
		t.Errorf("%d frames sent, %d lost of 400", s.FramesOut.Load(), s.DroppedOut.Load())
	}
}

func TestReceive(t *testing.T) {
	for name, tc := range map[string]struct {
		features uint64
		buffers  int
		length   uint32
		frame    int
		pieces   int
	}{
		"small":                         {all, 64, 1526, 60, 1},
		"exactly one buffer":            {all, 64, 1526, 1514, 1},
		"one byte more":                 {all, 64, 1526, 1515, 2},
		"the longest":                   {all, 64, 1526, 65550, 43},
		"a small ring":                  {all, 64, 128, 60*64 + 3, 31},
		"with event index and indirect": {all | virtiotest.EventIdx | virtiotest.Indirect, 64, 1526, 65550, 43},
		"without merging":               {all &^ merge, 64, 65562, 65550, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, tc.features, 64)
			at := g.offer(tc.buffers, tc.length)
			frame := pattern(tc.frame)
			for range 3 { // from the middle of the ring too
				g.arrive([]byte{1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0xff, 0xff}, frame)
				h, got := g.receive(at)
				want := []byte{1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, byte(tc.pieces), 0}
				if !bytes.Equal(h, want) || !bytes.Equal(got, frame) {
					t.Fatalf("header %x, want %x; %d bytes, want %d", h, want, len(got), len(frame))
				}
				maps.Copy(at, g.offer(g.Queues[rx].Free(), tc.length))
			}
			if n, b := g.dev.Stats.FramesIn.Load(), g.dev.Stats.BytesIn.Load(); n != 3 || b != 3*uint64(tc.frame) {
				t.Errorf("%d frames, %d bytes counted", n, b)
			}
		})
	}
}
