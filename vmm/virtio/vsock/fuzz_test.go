package vsock

import (
	"net"
	"testing"

	"cella.dev/cella/vmm/virtio/virtiotest"
)

// FuzzPackets sends any packets: each is a header, of which the addresses are kept right if the first input
// byte says so, followed by as many payload bytes as the second one says, times 16.
func FuzzPackets(f *testing.F) {
	packet := func(keep, payload byte, h header) []byte {
		var b [headerSize]byte
		h.encode(&b)
		return append([]byte{keep, payload}, b[:]...)
	}
	join := func(ps ...[]byte) (all []byte) {
		for _, p := range ps {
			all = append(all, p...)
		}
		return all
	}
	for op := range uint16(9) {
		f.Add(packet(1, 2, header{op: op, len: 32, flags: 3, bufAlloc: 1 << 16}))
		f.Add(packet(0, 0, header{op: op, typ: 1}))
	}
	f.Add(join(packet(1, 255, header{op: opRW, len: 255 * 16}), packet(1, 0, header{op: opShutdown, flags: 2}),
		packet(1, 1, header{op: opRW, len: 16}), packet(1, 0, header{op: opRST})))
	f.Fuzz(func(t *testing.T, input []byte) {
		g := newGuest(t)
		g.dev.Limits.BufferBytes = 2000
		g.up(8)
		client, s := g.attach()
		defer client.Close()
		for range 40 {
			if len(input) < 2+headerSize {
				break
			}
			var b [headerSize]byte
			copy(b[:], input[2:])
			var h header
			h.decode(&b)
			if input[0]&1 != 0 {
				h.srcCID, h.dstCID, h.srcPort, h.dstPort, h.typ = guestCID, hostCID, s.port, s.host, typeStream
			}
			g.transmit(h, text(int(input[1])*16))
			input = input[2+headerSize:]
		}
		g.dev.backend.Lock.Lock()
		for _, c := range g.dev.conns {
			if len(c.backlog) > 2000 {
				t.Errorf("%d bytes are kept for a client, the limit is 2000", len(c.backlog))
			}
		}
		if n := len(g.dev.resets); n > maxResets {
			t.Errorf("%d resets wait", n)
		}
		g.dev.backend.Lock.Unlock()
		g.dev.CloseAll()
		virtiotest.Must(t, g.dev.WaitIdle(t.Context()))
	})
}

// attach makes an established connection without a listener.
func (g *guest) attach() (*net.UnixConn, *stream) {
	g.tb.Helper()
	ours, theirs, err := socketPair()
	virtiotest.Must(g.tb, err)
	d := g.dev
	d.open.add(1)
	d.backend.Lock.Lock()
	c := d.newConn(key{firstPort, guestPort}, connecting)
	virtiotest.Must(g.tb, c.attach(theirs))
	c.settle(established)
	d.backend.Lock.Unlock()
	go func() {
		c.pump()
		theirs.Close()
	}()
	return ours, &stream{g: g, port: guestPort, host: firstPort, bufLen: 1 << 16}
}

// FuzzConnectLine reads any first line of a client.
func FuzzConnectLine(f *testing.F) {
	for _, s := range []string{"CONNECT 1\n", "CONNECT 4294967295\nearly", "CONNECT -1\n", "\n", "", "CONNECT 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, b, err := socketPair()
		virtiotest.Must(t, err)
		defer b.Close()
		if _, err := a.Write([]byte(s)); err != nil && len(s) > 0 {
			t.Fatal(err)
		}
		a.Close()
		port, early, err := readConnect(b)
		if err == nil && len(early) > len(s) {
			t.Errorf("port %d, %d early bytes of %d", port, len(early), len(s))
		}
	})
}
