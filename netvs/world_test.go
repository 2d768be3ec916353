package netvs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/netvs/testnet"
)

const uplink = testnet.Uplink

// limit bounds every wait of these tests.
const limit = testnet.Limit

// namespace is one with methods that fail a test.
type namespace struct{ *testnet.Namespace }

func (ns namespace) do(tb testing.TB, f func() error) {
	tb.Helper()
	if err := ns.Do(f); err != nil {
		tb.Fatal(err)
	}
}

func (ns namespace) dial(network, addr string) (net.Conn, error) { return ns.Dial(network, addr) }

func (ns namespace) mustDial(tb testing.TB, network, addr string) net.Conn {
	tb.Helper()
	c, err := ns.Dial(network, addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// newWorld connects the tests' namespace, as the host, with a world.
func newWorld(tb testing.TB) namespace {
	tb.Helper()
	ns, err := testnet.NewWorld()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := testnet.CloseWorld(ns); err != nil {
			tb.Error(err)
		}
	})
	return namespace{ns}
}

// newNetwork opens a network that is removed, with everything it made, at the end of the test.
func newNetwork(tb testing.TB, change ...func(*Config)) *Network {
	tb.Helper()
	cfg := Config{PinDir: tb.TempDir(), Pool: 2}
	for _, f := range change {
		f(&cfg)
	}
	n, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := n.Remove(); err != nil && !errors.Is(err, ErrClosed) {
			tb.Error(err)
		}
		if err := unix.Unmount(cfg.PinDir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			tb.Error(err)
		}
	})
	return n
}

// fakeGuest is a namespace behind a sandbox's tap.
type fakeGuest struct {
	namespace
	*Sandbox
	guest *testnet.Guest
}

// attachGuest attaches a sandbox and connects a guest to its tap.
func attachGuest(tb testing.TB, n *Network, id string, p *Policy) *fakeGuest {
	tb.Helper()
	s, err := n.Attach(id, p)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := testnet.NewGuest(s.File(), testnet.Address{MAC: GuestMAC, Addr: GuestAddr, Gateway: GatewayAddr})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := g.Close(); err != nil {
			tb.Error(err)
		}
		if err := s.Close(); err != nil && !errors.Is(err, ErrClosed) {
			tb.Error(err)
		}
	})
	return &fakeGuest{namespace{g.Namespace}, s, g}
}

// send puts a raw frame onto the tap, as a hostile guest may.
func (g *fakeGuest) send(frame []byte) error { return g.guest.Send(frame) }

// Close takes the sandbox's network away.
func (g *fakeGuest) Close() error { return g.Sandbox.Close() }

// dup is what a VMM gets of a tap: a descriptor of its own.
func dup(tb testing.TB, f *os.File) *os.File {
	tb.Helper()
	own, err := testnet.Dup(f)
	if err != nil {
		tb.Fatal(err)
	}
	return own
}

// deniedOf follows what is denied to sandboxes.
func deniedOf(tb testing.TB, n *Network) <-chan Denied {
	tb.Helper()
	events := make(chan Denied, 4096)
	go n.Events(func(d Denied) { events <- d })
	return events
}

// await waits for a denied packet of the reason, and returns it.
func await(tb testing.TB, events <-chan Denied, r Reason) Denied {
	tb.Helper()
	timeout := time.After(limit)
	for {
		select {
		case d := <-events:
			if d.Reason == r {
				return d
			}
		case <-timeout:
			tb.Fatalf("no packet was denied for %v", r)
		}
	}
}

// listen serves TCP in the namespace: f gets each connection.
func (ns namespace) listen(tb testing.TB, addr string, f func(net.Conn)) {
	tb.Helper()
	l, err := ns.Listen(addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
}

// listenUDP serves UDP in the namespace: the answer to a datagram is what f makes of it and its sender.
func (ns namespace) listenUDP(tb testing.TB, addr string, f func([]byte, netip.AddrPort) []byte) {
	tb.Helper()
	c, err := ns.ListenPacket("udp4", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(f(buf[:n], from.(*net.UDPAddr).AddrPort()), from)
		}
	}()
}
