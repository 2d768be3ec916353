package vsock

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

const (
	guestCID  = 3
	guestPort = 1024
	bufSize   = 4096
	// patience is how long a test waits for something that must happen.
	patience = 10 * time.Second
)

// guest is a guest's vsock driver, as simple as one can be.
type guest struct {
	*virtiotest.Driver
	tb      testing.TB
	dev     *Device
	tr      *mmio.Transport
	buffers map[uint16]uint64 // RX buffers by descriptor
	txBuf   map[uint16]uint64 // TX buffers in flight by descriptor
	txFree  []uint64
}

type packet struct {
	header
	data string
}

const features = virtiotest.Version1 | virtiotest.EventIdx | virtiotest.Indirect

// newGuest returns a device whose driver isn't up yet.
func newGuest(tb testing.TB) *guest {
	dev := New(guestCID)
	mem, irq := virtiotest.NewMemory(16<<20), virtiotest.NewInterrupt()
	tr := mmio.New(mem, dev, irq)
	return &guest{Driver: virtiotest.NewDriver(tr, mem, irq, 0x1000), tb: tb, dev: dev, tr: tr}
}

// up brings the driver up with n RX buffers and 8 event buffers.
func (g *guest) up(n int) *guest {
	g.tb.Helper()
	virtiotest.Must(g.tb, g.Init(features, 3, 256))
	g.buffers, g.txBuf, g.txFree = map[uint16]uint64{}, map[uint16]uint64{}, nil
	for range 64 {
		g.txFree = append(g.txFree, g.Alloc(headerSize+maxPayload))
	}
	for range 8 {
		g.Queues[queueEvent].Add(virtiotest.Buffer{Addr: g.Alloc(8), Len: 4, Write: true})
	}
	g.Queues[queueEvent].Kick()
	g.addBuffers(n)
	return g
}

func (g *guest) addBuffers(n int) {
	for range n {
		g.addBuffer(g.Alloc(bufSize))
	}
	g.Queues[queueRX].Kick()
}

func (g *guest) addBuffer(addr uint64) {
	// Header and payload apart, as Linux did before 6.2.
	head := g.Queues[queueRX].Add(virtiotest.Buffer{Addr: addr, Len: headerSize, Write: true},
		virtiotest.Buffer{Addr: addr + headerSize, Len: bufSize - headerSize, Write: true})
	g.buffers[head] = addr
}

// poll takes a packet if one is there, and gives its buffer back if reuse is set.
func (g *guest) poll(reuse bool) (packet, bool) {
	q := g.Queues[queueRX]
	u, ok := q.Take()
	if !ok {
		return packet{}, false
	}
	addr := g.buffers[u.Head]
	delete(g.buffers, u.Head)
	var b [headerSize]byte
	copy(b[:], g.Mem.RAM[addr:])
	var p packet
	p.decode(&b)
	if u.Len != headerSize+p.len {
		g.tb.Errorf("used length %d for a packet with %d bytes", u.Len, p.len)
	}
	p.data = string(g.Mem.RAM[addr+headerSize : addr+headerSize+uint64(p.len)])
	if reuse {
		g.addBuffer(addr)
		q.Kick()
	}
	return p, true
}

// wait sleeps until the device interrupts, unless something is in the RX or event queue already.
func (g *guest) wait() {
	g.tb.Helper()
	if g.Queues[queueRX].Arm() || g.Queues[queueEvent].Arm() {
		return
	}
	select {
	case <-g.IRQ.C:
		g.Ack()
	case <-time.After(patience):
		g.tb.Fatal("the device sent nothing")
	}
}

func (g *guest) recvKeep(reuse bool) packet {
	g.tb.Helper()
	for {
		if p, ok := g.poll(reuse); ok {
			return p
		}
		g.wait()
	}
}

func (g *guest) recv() packet {
	g.tb.Helper()
	return g.recvKeep(true)
}

// expect takes the next packet, which must have the operation.
func (g *guest) expect(op uint16) packet {
	g.tb.Helper()
	p := g.recv()
	if p.op != op || p.srcCID != hostCID || p.dstCID != guestCID || p.typ != typeStream {
		g.tb.Fatalf("got packet %+v, want operation %d", p.header, op)
	}
	return p
}

// silent checks that the device has sent nothing.
func (g *guest) silent() {
	g.tb.Helper()
	if p, ok := g.poll(true); ok {
		g.tb.Errorf("unexpected packet %+v %q", p.header, p.data)
	}
}

// transmit sends a packet as it is.
func (g *guest) transmit(h header, data string) {
	g.tb.Helper()
	q := g.Queues[queueTX]
	for {
		u, ok := q.Take()
		if !ok {
			break
		}
		g.txFree = append(g.txFree, g.txBuf[u.Head])
	}
	if len(g.txFree) == 0 {
		g.tb.Fatal("the device does not use TX buffers")
	}
	addr := g.txFree[0]
	g.txFree = g.txFree[1:]
	var b [headerSize]byte
	h.encode(&b)
	copy(g.Mem.RAM[addr:], b[:])
	copy(g.Mem.RAM[addr+headerSize:], data)
	bufs := []virtiotest.Buffer{{Addr: addr, Len: headerSize}}
	if data != "" {
		bufs = append(bufs, virtiotest.Buffer{Addr: addr + headerSize, Len: uint32(len(data))})
	}
	g.txBuf[q.Add(bufs...)] = addr
	q.Kick()
}

// stream is the guest's end of a connection.
type stream struct {
	g           *guest
	port, host  uint32
	got, bufLen uint32
}

func (s *stream) send(op uint16, flags uint32, data string) {
	s.g.tb.Helper()
	s.g.transmit(header{srcCID: guestCID, dstCID: hostCID, srcPort: s.port, dstPort: s.host, len: uint32(len(data)),
		typ: typeStream, op: op, flags: flags, bufAlloc: s.bufLen, fwdCnt: s.got}, data)
}

// answer takes a REQUEST and accepts it.
func (g *guest) answer() *stream {
	g.tb.Helper()
	p := g.expect(opRequest)
	s := &stream{g: g, port: p.dstPort, host: p.srcPort, bufLen: 256 << 10}
	s.send(opResponse, 0, "")
	return s
}

// data takes RW packets until n bytes came.
func (s *stream) data(n int) string {
	s.g.tb.Helper()
	var b strings.Builder
	for b.Len() < n {
		p := s.g.expect(opRW)
		s.got += p.len
		b.WriteString(p.data)
	}
	return b.String()
}

// client is a host client of the device.
type client struct {
	*net.UnixConn
	tb testing.TB
	r  *bufio.Reader
}

// listen has the device serve a unix socket.
func (g *guest) listen() *guest {
	g.tb.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(g.tb.TempDir(), "v"), Net: "unix"})
	virtiotest.Must(g.tb, err)
	served := make(chan error, 1)
	dev := g.dev
	go func() { served <- dev.Serve(l) }()
	g.tb.Cleanup(func() {
		l.Close()
		if err := <-served; err != nil {
			g.tb.Errorf("Serve: %v", err)
		}
		dev.CloseAll()
	})
	sockets[g.tb] = l.Addr().(*net.UnixAddr)
	return g
}

// sockets has the address each test listens on; tests don't run in parallel.
var sockets = map[testing.TB]*net.UnixAddr{}

func (g *guest) dialRaw() *client {
	g.tb.Helper()
	c, err := net.DialUnix("unix", nil, sockets[g.tb])
	virtiotest.Must(g.tb, err)
	g.tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{UnixConn: c, tb: g.tb, r: bufio.NewReader(c)}
}

// dial sends CONNECT and what the client can't wait to say.
func (g *guest) dial(early string) *client {
	g.tb.Helper()
	c := g.dialRaw()
	c.write(fmt.Sprintf("CONNECT %d\n%s", guestPort, early))
	return c
}

// connect makes a connection.
func (g *guest) connect() (*client, *stream) {
	g.tb.Helper()
	c := g.dial("")
	s := g.answer()
	c.line(fmt.Sprintf("OK %d", s.host))
	return c, s
}

func (c *client) write(s string) {
	c.tb.Helper()
	_, err := io.WriteString(c, s)
	virtiotest.Must(c.tb, err)
}

func (c *client) line(want string) {
	c.tb.Helper()
	got, err := c.r.ReadString('\n')
	if err != nil || got != want+"\n" {
		c.tb.Fatalf("client got %q, %v, want %q", got, err, want)
	}
}

func (c *client) expect(want string) {
	c.tb.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c.r, b); err != nil || string(b) != want {
		c.tb.Fatalf("client got %.100q, %v, want %.100q", b, err, want)
	}
}

func (c *client) eof() {
	c.tb.Helper()
	if b, err := io.ReadAll(c.r); err != nil || len(b) > 0 {
		c.tb.Fatalf("client got %.100q, %v, want the end", b, err)
	}
}

// idle waits until the device has no connection.
func (g *guest) idle() {
	g.tb.Helper()
	virtiotest.Must(g.tb, g.dev.WaitIdle(g.tb.Context()))
}
