package vsock

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/vmm/virtio/virtiotest"
)

func TestConfigurationSpace(t *testing.T) {
	g := newGuest(t)
	for _, tt := range []struct {
		off, n int
		want   uint64
	}{{0, 8, guestCID}, {0, 4, guestCID}, {4, 4, 0}, {8, 8, 0}, {1 << 20, 4, 0}} {
		b := append(g.Config(uint64(tt.off), tt.n), make([]byte, 8)...)
		if got := binary.LittleEndian.Uint64(b); got != tt.want {
			t.Errorf("config [%d, +%d) is %d, want %d", tt.off, tt.n, got, tt.want)
		}
	}
	if got := g.Offered(); got != features {
		t.Errorf("features %#x, want %#x", got, uint64(features))
	}
}

func TestStream(t *testing.T) {
	g := newGuest(t).up(32).listen()
	c, s := g.connect()
	c.write("from the host")
	if got := s.data(13); got != "from the host" {
		t.Errorf("guest got %q", got)
	}
	s.send(opRW, 0, "from the guest")
	c.expect("from the guest")
	if n := g.dev.Connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	g.silent()
}

func TestEarlyDataFollowsTheResponse(t *testing.T) {
	for _, n := range []int{1, 100, 4000, 9000, 70000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			g := newGuest(t).up(32).listen()
			early := strings.Repeat("0123456789", n/10+1)[:n]
			c := g.dial(early)
			s := g.answer()
			if got := s.data(n); got != early {
				t.Errorf("guest got %d bytes, not those of the client", len(got))
			}
			s.send(opRW, 0, "reply")
			c.line(fmt.Sprintf("OK %d", s.host))
			c.expect("reply")
		})
	}
}

func TestConnectIsRefused(t *testing.T) {
	g := newGuest(t)
	g.dev.Limits.ConnectTimeout = 50 * time.Millisecond
	g.dev.Limits.MaxConnections = 1
	g.up(32).listen()
	for _, tt := range []struct{ name, line, want string }{
		{"not a number", "CONNECT x\n", `ERR "CONNECT x" is not "CONNECT port"`},
		{"another verb", "HELLO 1\n", `ERR "HELLO 1" is not "CONNECT port"`},
		{"too large", "CONNECT 4294967296\n", `ERR "CONNECT 4294967296" is not "CONNECT port"`},
		{"too long", "CONNECT " + strings.Repeat("1", 100), `ERR the first line is too long: expected "CONNECT port"`},
		{"no answer", "CONNECT 7\n", "ERR connect to guest port 7: the guest did not answer within 50ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := g.dialRaw()
			c.write(tt.line)
			c.line(tt.want)
			g.idle()
		})
	}
	p := g.expect(opRequest)
	g.expect(opRST)
	s := &stream{g: g, port: p.dstPort, host: p.srcPort}
	s.send(opResponse, 0, "")
	g.expect(opRST)

	c := g.dial("")
	p = g.expect(opRequest)
	s = &stream{g: g, port: p.dstPort, host: p.srcPort}
	s.send(opRST, 0, "")
	c.line("ERR connect to guest port 1024: the guest refused or reset the connection")
	g.idle()

	g.connect()
	g.dial("").line("ERR 1 connections are open, which is the limit")
	if n := g.dev.Stats.Refused.Load(); n != 7 {
		t.Errorf("%d refused, want 7", n)
	}
}

func TestConnectBeforeTheDriverIsUp(t *testing.T) {
	g := newGuest(t).listen()
	c := g.dial("early")
	g.up(32)
	s := g.answer()
	c.line(fmt.Sprintf("OK %d", s.host))
	if got := s.data(5); got != "early" {
		t.Errorf("guest got %q", got)
	}
}

func TestConnectTimesOutWithoutADriver(t *testing.T) {
	g := newGuest(t)
	g.dev.Limits.ConnectTimeout = 20 * time.Millisecond
	g.listen()
	g.dial("").line("ERR the guest's vsock driver is not up after 20ms")
	g.idle()
}

func TestClosing(t *testing.T) {
	start := func(t *testing.T) (*guest, *client, *stream) {
		g := newGuest(t).up(32).listen()
		c, s := g.connect()
		return g, c, s
	}
	t.Run("guest closes", func(t *testing.T) {
		g, c, s := start(t)
		s.send(opRW, 0, "last words")
		s.send(opShutdown, shutdownBoth, "")
		g.expect(opRST)
		c.expect("last words")
		c.eof()
		g.idle()
	})
	t.Run("guest ends its half", func(t *testing.T) {
		g, c, s := start(t)
		s.send(opRW, 0, "request")
		s.send(opShutdown, shutdownSend, "")
		c.expect("request")
		c.eof()
		c.write("reply")
		if got := s.data(5); got != "reply" {
			t.Errorf("guest got %q", got)
		}
		c.Close()
		if p := g.expect(opShutdown); p.flags&shutdownSend == 0 {
			t.Errorf("flags %d", p.flags)
		}
		s.send(opShutdown, shutdownBoth, "")
		for g.recv().op != opRST {
		}
		g.idle()
	})
	t.Run("client ends its half", func(t *testing.T) {
		g, c, s := start(t)
		c.write("request")
		virtiotest.Must(t, c.CloseWrite())
		if got := s.data(7); got != "request" {
			t.Errorf("guest got %q", got)
		}
		if p := g.expect(opShutdown); p.flags != shutdownSend {
			t.Errorf("flags %d, want %d", p.flags, shutdownSend)
		}
		s.send(opRW, 0, "reply")
		c.expect("reply")
		s.send(opShutdown, shutdownBoth, "")
		g.expect(opRST)
		c.eof()
		g.idle()
	})
	t.Run("client closes", func(t *testing.T) {
		g, c, s := start(t)
		c.write("bye")
		c.Close()
		if got := s.data(3); got != "bye" {
			t.Errorf("guest got %q", got)
		}
		if p := g.expect(opShutdown); p.flags != shutdownBoth {
			t.Errorf("flags %d, want %d", p.flags, shutdownBoth)
		}
		s.send(opRW, 0, "nobody reads this")
		s.send(opRST, 0, "")
		g.idle()
		g.silent()
	})
	t.Run("client ends its half, then closes", func(t *testing.T) {
		g, c, s := start(t)
		virtiotest.Must(t, c.CloseWrite())
		if p := g.expect(opShutdown); p.flags != shutdownSend {
			t.Errorf("flags %d, want %d", p.flags, shutdownSend)
		}
		c.Close()
		if p := g.expect(opShutdown); p.flags != shutdownBoth {
			t.Errorf("flags %d, want %d", p.flags, shutdownBoth)
		}
		s.send(opRST, 0, "")
		g.idle()
	})
	t.Run("guest never confirms", func(t *testing.T) {
		g := newGuest(t)
		g.dev.Limits.CloseTimeout = 20 * time.Millisecond
		g.up(32).listen()
		c, _ := g.connect()
		c.Close()
		g.expect(opShutdown)
		g.expect(opRST)
		g.idle()
	})
	t.Run("guest resets", func(t *testing.T) {
		g, c, s := start(t)
		s.send(opRST, 0, "")
		c.eof()
		g.idle()
		g.silent()
	})
	t.Run("everything is closed", func(t *testing.T) {
		g, c, _ := start(t)
		waiting, asked := g.dialRaw(), g.dial("")
		g.expect(opRequest)
		g.dev.CloseAll()
		g.expect(opRST)
		g.expect(opRST)
		c.eof()
		asked.line("ERR connect to guest port 1024: all connections were closed")
		if got, err := waiting.r.ReadString('\n'); !strings.HasPrefix(got, "ERR ") {
			t.Errorf("a client in its handshake got %q, %v", got, err)
		}
		g.idle()
	})
	t.Run("the driver is reset", func(t *testing.T) {
		g, c, _ := start(t)
		g.Write32(0x70, 0)
		c.eof()
		g.idle()
		late := g.dial("")
		g.up(16)
		s := g.answer()
		late.line(fmt.Sprintf("OK %d", s.host))
	})
}

func TestGuestMayNotConnectToTheHost(t *testing.T) {
	g := newGuest(t).up(8)
	s := &stream{g: g, port: 5000, host: 22}
	s.send(opRequest, 0, "")
	if p := g.expect(opRST); p.srcPort != 22 || p.dstPort != 5000 {
		t.Errorf("RST from port %d to %d", p.srcPort, p.dstPort)
	}
}
