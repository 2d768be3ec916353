package vsock

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"cella.dev/cella/vmm/virtio/virtiotest"
)

// text is n bytes without an easy period.
func text(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()[:n]
}

func TestGuestCreditIsRespected(t *testing.T) {
	g := newGuest(t).up(64).listen()
	c := g.dial("")
	p := g.expect(opRequest)
	s := &stream{g: g, port: p.dstPort, host: p.srcPort, bufLen: 100}
	s.send(opResponse, 0, "")
	c.line(fmt.Sprintf("OK %d", s.host))
	want := text(1000)
	c.write(want)
	var got string
	for len(got) < 1000 {
		got += s.data(100)
		// The window is full: the device asks for credit, and sends nothing before it has some.
		g.expect(opCreditRequest)
		g.silent()
		s.send(opCreditUpdate, 0, "")
	}
	if got != want {
		t.Error("the guest got other bytes than the client sent")
	}
}

func TestContradictoryCreditIsNoCredit(t *testing.T) {
	g := newGuest(t).up(64).listen()
	c, s := g.connect()
	s.got = 1 << 30 // more than was ever sent
	s.send(opCreditUpdate, 0, "")
	c.write("data")
	g.expect(opCreditRequest)
	g.silent()
	s.got = 0
	s.send(opCreditUpdate, 0, "")
	if got := s.data(4); got != "data" {
		t.Errorf("guest got %q", got)
	}
}

func TestHostCredit(t *testing.T) {
	g := newGuest(t)
	g.dev.Limits.BufferBytes = 1000
	g.up(64).listen()
	c, s := g.connect()
	for range 5 {
		s.send(opRW, 0, text(400))
		c.expect(text(400))
		g.silent()
		s.send(opRW, 0, text(100))
		c.expect(text(100))
		if p := g.expect(opCreditUpdate); p.bufAlloc != 1000 || p.fwdCnt%500 != 0 || p.fwdCnt == 0 {
			t.Errorf("credit %d, forwarded %d", p.bufAlloc, p.fwdCnt)
		}
	}
	s.send(opCreditRequest, 0, "")
	if p := g.expect(opCreditUpdate); p.fwdCnt != 2500 {
		t.Errorf("forwarded %d, want 2500", p.fwdCnt)
	}
}

// fillUp sends from the guest until the client's socket and the credit are used up. It returns what was sent.
func fillUp(s *stream) string {
	const piece = 60 << 10
	var sent strings.Builder
	var forwarded uint32
	for {
		for {
			p, ok := s.g.poll(true)
			if !ok {
				break
			}
			forwarded = p.fwdCnt
		}
		if uint32(sent.Len())-forwarded+piece > s.g.dev.Limits.BufferBytes {
			return sent.String()
		}
		data := text(piece)
		s.send(opRW, 0, data)
		sent.WriteString(data)
	}
}

func TestStalledClientDoesNotHoldUpOthers(t *testing.T) {
	g := newGuest(t).up(64).listen()
	slow, s1 := g.connect()
	fast, s2 := g.connect()
	sent := fillUp(s1)
	for range 100 {
		s2.send(opRW, 0, "ping")
		fast.expect("ping")
		fast.write("pong")
		if got := s2.data(4); got != "pong" {
			t.Fatalf("guest got %q", got)
		}
	}
	read := make(chan string)
	go func() {
		b := make([]byte, len(sent))
		_, err := io.ReadFull(slow.r, b)
		if err != nil {
			t.Error(err)
		}
		read <- string(b)
	}()
	if got := <-read; got != sent {
		t.Error("the slow client got other bytes than the guest sent")
	}
	for g.recv().fwdCnt != uint32(len(sent)) {
		s1.send(opCreditRequest, 0, "")
	}
}

func TestDataBeyondTheCreditEndsTheConnection(t *testing.T) {
	g := newGuest(t).up(64).listen()
	_, s := g.connect()
	fillUp(s)
	for range 5 {
		s.send(opRW, 0, text(60<<10))
	}
	g.expect(opRST)
	g.idle()
	if n := g.dev.Stats.Malformed.Load(); n == 0 {
		t.Error("not counted")
	}
}

func TestClientGetsTheRestAfterTheGuestClosed(t *testing.T) {
	g := newGuest(t).up(64).listen()
	c, s := g.connect()
	sent := fillUp(s)
	s.send(opShutdown, shutdownBoth, "")
	for g.recv().op != opRST {
	}
	if n := g.dev.Connections(); n != 1 {
		t.Errorf("%d connections while the client still reads, want 1", n)
	}
	c.expect(sent)
	c.eof()
	g.idle()
}

func TestGuestWithoutBuffers(t *testing.T) {
	g := newGuest(t).up(2).listen()
	c, s := g.connect()
	// The first packets fill the buffers that there are; the guest doesn't give them back.
	want := text(5 * bufSize)
	c.write(want)
	var got string
	for i := range 2 {
		p := g.recvKeep(false)
		if p.op != opRW {
			t.Fatalf("packet %d is %+v", i, p.header)
		}
		got += p.data
	}
	// What the guest sends still arrives, and its packets are used.
	s.send(opRW, 0, "still here")
	c.expect("still here")
	g.silent()
	g.addBuffers(1)
	s.got = uint32(len(got))
	got += s.data(len(want) - len(got))
	if got != want {
		t.Error("the guest got other bytes than the client sent")
	}
}

func TestFloodOfBadPacketsIsSlowedDown(t *testing.T) {
	g := newGuest(t).up(0)
	s := &stream{g: g, port: 1, host: 1}
	for n := 0; ; n++ {
		s.send(opCreditUpdate, 0, "")
		if _, ok := g.Queues[queueTX].Take(); !ok {
			if n != maxResets {
				t.Errorf("%d packets were answered without a buffer for the answers, want %d", n, maxResets)
			}
			break
		}
		g.txFree = append(g.txFree, g.txFree[0])
	}
	g.addBuffers(8)
	for range maxResets + 1 {
		g.expect(opRST)
	}
	if _, ok := g.Queues[queueTX].Take(); !ok {
		t.Error("the device did not go on")
	}
}

func TestHostilePackets(t *testing.T) {
	good := func(s *stream, op uint16) header {
		return header{srcCID: guestCID, dstCID: hostCID, srcPort: s.port, dstPort: s.host, typ: typeStream, op: op, bufAlloc: 1 << 16}
	}
	for _, tt := range []struct {
		name   string
		change func(h *header)
		data   string
		alive  bool // the connection outlives it
		silent bool
	}{
		{name: "another source CID", change: func(h *header) { h.srcCID = 77 }, alive: true},
		{name: "another destination CID", change: func(h *header) { h.dstCID = 77 }, alive: true},
		{name: "another type", change: func(h *header) { h.typ = 2 }, alive: true},
		{name: "unknown operation", change: func(h *header) { h.op = 99 }},
		{name: "operation 0", change: func(h *header) { h.op = 0 }},
		{name: "length beyond the chain", change: func(h *header) { h.len = 100 }, data: "short"},
		{name: "greatest length", change: func(h *header) { h.len = 1<<32 - 1 }, data: "short"},
		{name: "payload on a control packet", change: func(h *header) { h.op, h.len = opShutdown, 5 }, data: "hello"},
		{name: "second response", change: func(h *header) { h.op = opResponse }},
		{name: "request on an open connection", change: func(h *header) { h.op = opRequest }},
		{name: "unknown connection", change: func(h *header) { h.srcPort++ }, alive: true},
		{name: "reset of an unknown connection", change: func(h *header) { h.srcPort++; h.op = opRST }, alive: true, silent: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGuest(t).up(16).listen()
			c, s := g.connect()
			h := good(s, opRW)
			tt.change(&h)
			g.transmit(h, tt.data)
			if tt.silent {
				g.silent()
			} else if p := g.recv(); p.op != opRST || p.srcPort != h.dstPort || p.dstPort != h.srcPort {
				t.Errorf("answer is %+v, want an RST", p.header)
			}
			if !tt.alive {
				c.eof()
				g.idle()
				return
			}
			s.send(opRW, 0, "alive")
			c.expect("alive")
		})
	}
	t.Run("shorter than a header", func(t *testing.T) {
		g := newGuest(t).up(4)
		q := g.Queues[queueTX]
		q.Add(virtiotest.Buffer{Addr: g.Alloc(64), Len: headerSize - 1})
		q.Kick()
		if u, ok := q.Take(); !ok || u.Len != 0 || g.dev.Stats.Malformed.Load() != 1 {
			t.Errorf("used %+v, %t", u, ok)
		}
		g.silent()
	})
	t.Run("receive buffer without room", func(t *testing.T) {
		g := newGuest(t).up(0)
		g.Queues[queueRX].Add(virtiotest.Buffer{Addr: g.Alloc(64), Len: headerSize, Write: true})
		g.Queues[queueRX].Kick()
		(&stream{g: g}).send(opRW, 0, "")
		if s := g.Read32(0x70); s&64 == 0 {
			t.Errorf("status %d, want DEVICE_NEEDS_RESET", s)
		}
	})
}

func TestLargeTransfers(t *testing.T) {
	g := newGuest(t).up(64).listen()
	c, s := g.connect()
	want := text(4 << 20)
	go func() {
		if _, err := io.WriteString(c, want); err != nil {
			t.Error(err)
		}
	}()
	var got strings.Builder
	for got.Len() < len(want) {
		p := g.recv()
		s.got += p.len
		got.WriteString(p.data)
		if p.op == opCreditRequest || s.got%(128<<10) < bufSize {
			s.send(opCreditUpdate, 0, "")
		}
	}
	if got.String() != want {
		t.Error("the guest got other bytes than the client sent")
	}
	s.send(opShutdown, shutdownBoth, "")
	g.expect(opRST)
	c.eof()
}
