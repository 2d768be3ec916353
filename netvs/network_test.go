package netvs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// whoami answers a datagram with the address it came from.
func whoami(_ []byte, from netip.AddrPort) []byte { return []byte(from.Addr().String()) }

func echo(c net.Conn) { io.Copy(c, c) }

func ask(tb testing.TB, c net.Conn, question string) string {
	tb.Helper()
	if _, err := c.Write([]byte(question)); err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 65536)
	n, err := c.Read(buf)
	if err != nil {
		tb.Fatal(err)
	}
	return string(buf[:n])
}

func TestGuestReachesTheWorldMasqueraded(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	w.listenUDP(t, world+":7000", whoami)
	w.listen(t, world2+":7001", echo)
	if got := ask(t, g.mustDial(t, "udp4", world+":7000"), "?"); got != uplink {
		t.Errorf("the world saw %s, want %s", got, uplink)
	}
	if got := ask(t, g.mustDial(t, "tcp4", world2+":7001"), "hello"); got != "hello" {
		t.Errorf("echo is %q", got)
	}
	st, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st.Packets[PassedOut] < 4 || st.Packets[PassedIn] < 3 || st.Dropped() != 0 || st.BytesOut == 0 || st.BytesIn == 0 {
		t.Errorf("counted %+v", st)
	}
}

func TestFragmentsPassBothWays(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	w.listenUDP(t, world+":7000", func(b []byte, _ netip.AddrPort) []byte { return b })
	big := strings.Repeat("0123456789abcdef", 500)
	if got := ask(t, g.mustDial(t, "udp4", world+":7000"), big); got != big {
		t.Errorf("%d bytes came back of %d", len(got), len(big))
	}
}

func TestLargeTransfersKeepTheirBytes(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	const size = 32 << 20
	w.listen(t, world+":7001", func(c net.Conn) { // answers with the sum of what came, then sends it all back
		h := sha256.New()
		var all bytes.Buffer
		io.Copy(io.MultiWriter(h, &all), c)
		c.Write(h.Sum(nil))
		all.WriteTo(c)
	})
	data := bytes.Repeat([]byte("sixteen bytes.. "), size/16)
	c := g.mustDial(t, "tcp4", world+":7001").(*net.TCPConn)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil { // half-closed: the answer still has to come
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(data)
	if len(got) != size+32 || !bytes.Equal(got[:32], want[:]) || !bytes.Equal(got[32:], data) {
		t.Errorf("%d bytes came back, sum %x, want %x", len(got), got[:32], want)
	}
	st, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if per := st.BytesOut / st.Packets[PassedOut]; per < 3000 {
		t.Errorf("%d bytes a packet left: segmentation offload was lost", per)
	}
}

func TestManyConnectionsClosedByTheGuest(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	w.listen(t, world+":7001", echo)
	for i := range 300 {
		c, err := g.dial("tcp4", world+":7001")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if got := ask(t, c, "x"); got != "x" {
			t.Fatalf("connection %d: %q", i, got)
		}
		c.Close()
	}
}

// ping sends one echo request from the namespace, and returns the ICMP message that answers it and who sent it.
func ping(tb testing.TB, ns namespace, dst string, ttl int) ([]byte, string) {
	tb.Helper()
	var c net.PacketConn
	ns.do(tb, func() (err error) {
		c, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	defer c.Close()
	raw, err := c.(*net.IPConn).SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl) }); err != nil {
		tb.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(limit))
	if _, err := c.WriteTo(icmp(8, 0, 0x00070001, []byte("ping")), &net.IPAddr{IP: net.ParseIP(dst)}); err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 1500)
	k, from, err := c.ReadFrom(buf)
	if err != nil {
		tb.Fatal(err)
	}
	return buf[:k], from.String()
}

func TestPings(t *testing.T) {
	_, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	for _, dst := range []string{gateway, world} {
		if got, from := ping(t, g.namespace, dst, 64); from != dst || !bytes.Equal(got, icmp(0, 0, 0x00070001, []byte("ping"))) {
			t.Errorf("ping of %s: %x from %s", dst, got, from)
		}
	}
}

func TestTracerouteSeesTheGatewayAndItself(t *testing.T) {
	_, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	got, from := ping(t, g.namespace, world, 1)
	if from != gateway || got[0] != 11 {
		t.Fatalf("type %d from %s, want time exceeded from the gateway", got[0], from)
	}
	quote := got[8:]
	if src, dst := netip.AddrFrom4([4]byte(quote[12:16])), netip.AddrFrom4([4]byte(quote[16:20])); src.String() != guest || dst.String() != world {
		t.Errorf("it quotes a packet from %v to %v", src, dst)
	}
	if checksum(got) != 0 || checksum(quote[:20]) != 0 {
		t.Error("checksums are wrong")
	}
}

func TestPortUnreachableReachesTheGuest(t *testing.T) {
	_, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	c := g.mustDial(t, "udp4", world+":9999")
	c.Write([]byte("anybody?"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want connection refused", err)
	}
}

func TestPathMTU(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	up, err := netlink.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(up, 1280); err != nil {
		t.Fatal(err)
	}
	w.listen(t, world2+":7001", func(c net.Conn) {
		k, _ := io.Copy(io.Discard, c)
		fmt.Fprint(c, k)
	})
	c := g.mustDial(t, "tcp4", world2+":7001").(*net.TCPConn)
	if _, err := c.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "1048576" {
		t.Errorf("%q arrived, %v", got, err)
	}
	// A datagram that may not be fragmented: the guest's kernel learns the path's MTU from the host's ICMP error.
	u := g.mustDial(t, "udp4", world+":7000").(*net.UDPConn)
	raw, _ := u.SyscallConn()
	if err := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}); err != nil {
		t.Fatal(err)
	}
	u.Write(make([]byte, 1400))
	if _, err := u.Read(make([]byte, 1)); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("got %v, want message too long", err)
	}
	mtu := 0
	raw.Control(func(fd uintptr) { mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU) })
	if mtu != 1280 || err != nil {
		t.Errorf("the path's MTU is %d, %v", mtu, err)
	}
}

func TestNoSandboxReachesAnotherOrTheHost(t *testing.T) {
	_, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	a := attachGuest(t, n, "a", &Policy{Internet: true, Allow: []Rule{{Prefix: everything}}})
	b := attachGuest(t, n, "b", &Policy{Internet: true, Allow: []Rule{{Prefix: everything}}})
	namespace{hostNamespace(t)}.listenUDP(t, "0.0.0.0:7000", whoami)
	for _, dst := range []string{b.HostAddr().String(), uplink, n.cfg.resolver().String(), "169.254.169.254", "192.168.1.1"} {
		a.mustDial(t, "udp4", dst+":7000").Write([]byte("let me in"))
		d := await(t, events, DropBlocked)
		if d.Sandbox != "a" || d.To != netip.AddrPortFrom(netip.MustParseAddr(dst), 7000) || d.From.Addr().String() != guest || d.Protocol != UDP {
			t.Errorf("denied %+v", d)
		}
	}
	st, err := b.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st.Packets[PassedIn] != 0 {
		t.Errorf("%d packets reached the other sandbox", st.Packets[PassedIn])
	}
}

func TestNewAddressesOfTheHostAreBlocked(t *testing.T) {
	_, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	if err := addAddr("up0", "192.0.2.99/32"); err != nil {
		t.Fatal(err)
	}
	// Until the network has heard of it too, the rule set drops the packets, and nobody tells: so go on asking.
	c := g.mustDial(t, "udp4", "192.0.2.99:22")
	for {
		c.Write([]byte("let me in"))
		select {
		case d := <-events:
			if d.Reason != DropBlocked || d.To.Addr().String() != "192.0.2.99" {
				t.Errorf("denied %+v", d)
			}
			return
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("never blocked")
		}
	}
}

// hostNamespace is that of the tests.
func hostNamespace(tb testing.TB) int {
	tb.Helper()
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestNobodyOpensFlowsToASandbox(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	g.listenUDP(t, "0.0.0.0:7000", whoami)
	c, err := net.Dial("udp4", netip.AddrPortFrom(g.HostAddr(), 7000).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); !errors.Is(err, syscall.EPERM) {
		t.Errorf("the host could send: %v", err)
	}
	// The world even knows the way: it routes the range to the host.
	w.do(t, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(n.cfg.Range), Gw: net.ParseIP(uplink)})
	})
	u := w.mustDial(t, "udp4", netip.AddrPortFrom(g.HostAddr(), 7000).String())
	u.Write([]byte("hello"))
	// What the world sends afterwards on a flow of the guest arrives: so the datagram before it did not.
	w.listenUDP(t, world+":7001", whoami)
	ask(t, g.mustDial(t, "udp4", world+":7001"), "?")
	st, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st.Packets[PassedIn] != 1 {
		t.Errorf("%d packets reached the guest, want only the answer to its own", st.Packets[PassedIn])
	}
}

func TestHostileFrames(t *testing.T) {
	n := newNetwork(t)
	events := deniedOf(t, n)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	ok := ip4(header{src: guest, dst: world, protocol: UDP}, udp(guest, world, 1, 2, []byte("hello")))
	tests := []struct {
		name   string
		frame  []byte
		reason Reason
	}{
		{"vlan tag", frame(GatewayMAC, GuestMAC, etherVLAN, append([]byte{0, 5, 8, 0}, ok...)), DropVLAN},
		{"priority tag", frame(GatewayMAC, GuestMAC, etherVLAN, append([]byte{0xe0, 0, 8, 0}, ok...)), DropVLAN},
		{"two vlan tags", frame(GatewayMAC, GuestMAC, 0x88a8, append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, ok...)), DropVLAN},
		{"another's MAC", frame(GatewayMAC, GatewayMAC, etherIPv4, ok), DropSourceMAC},
		{"straight to a neighbour", frame(net.HardwareAddr{2, 0, 0, 0, 0, 9}, GuestMAC, etherIPv4, ok), DropDestinationMAC},
		{"router advertisement", frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, GuestMAC, etherIPv6, make([]byte, 64)), DropIPv6},
		{"poisoned arp", frame(GatewayMAC, GuestMAC, etherARP, arp(2, GuestMAC, "203.0.113.1", GatewayMAC, gateway)), DropARP},
		{"19 bytes of ip", frame(GatewayMAC, GuestMAC, etherIPv4, ok[:19]), DropMalformed},
		{"one byte of ip", frame(GatewayMAC, GuestMAC, etherIPv4, ok[:1]), DropMalformed},
		{"ip in ip", fromGuest(ip4(header{src: guest, dst: world, protocol: 4}, ok)), DropProtocol},
		{"source route", fromGuest(ip4(header{src: guest, dst: world, protocol: UDP, options: []byte{131, 7, 4, 203, 0, 113, 9, 0}}, ok[20:])), DropOptions},
		{"a neighbour's address", fromGuest(ip4(header{src: "10.77.0.3", dst: world, protocol: UDP}, ok[20:])), DropSourceIP},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := g.send(t, tt.frame); err != nil {
				t.Fatal(err)
			}
			if d := await(t, events, tt.reason); d.Sandbox != "a" || d.Age < 0 || d.Age > limit {
				t.Errorf("denied %+v", d)
			}
		})
	}
}

func TestPolicyIsReplacedLive(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	w.listen(t, world+":7001", echo)
	c := g.mustDial(t, "tcp4", world+":7001")
	ask(t, c, "one")
	if err := g.SetPolicy(&Policy{Internet: true, Deny: rules(t, world+" tcp/7001")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if d := await(t, events, DropPolicy); d.To.String() != world+":7001" {
		t.Errorf("denied %+v", d)
	}
	if err := g.SetPolicy(&Policy{Allow: rules(t, world)}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "two" {
		t.Errorf("after the policy opened again: %q, %v", buf, err)
	}
	for range 20 { // one replacement right after the other
		if err := g.SetPolicy(&Policy{Allow: rules(t, world+","+world2)}); err != nil {
			t.Fatal(err)
		}
		ask(t, c, "more")
	}
	bad := &Policy{Allow: rules(t, "1.1.1.1 tcp/1,1.1.1.1 tcp/3,1.1.1.1 tcp/5,1.1.1.1 tcp/7,1.1.1.1 tcp/9,1.1.1.1 tcp/11,1.1.1.1 tcp/13,1.1.1.1 tcp/15,1.1.1.1 tcp/17")}
	if err := g.SetPolicy(bad); !errors.Is(err, ErrTooManyRules) {
		t.Errorf("got %v", err)
	}
	ask(t, c, "the old policy is untouched")
}

func TestFlowsSurviveARestart(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	g := attachGuest(t, n, "a", &Policy{Internet: true, Deny: rules(t, world2)})
	idle, err := n.Attach("nobody's", &Policy{})
	if err != nil {
		t.Fatal(err)
	}
	w.listen(t, world+":7001", echo)
	c := g.mustDial(t, "tcp4", world+":7001")
	ask(t, c, "before")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	ask(t, c, "between")

	n, err = Open(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	ask(t, c, "reopened")
	s, err := n.Adopt("a", g.Tap(), &Policy{Internet: true, Deny: rules(t, world2)})
	if err != nil {
		t.Fatal(err)
	}
	ask(t, c, "adopted")
	if _, err := n.Adopt("a", g.Tap(), &Policy{}); err == nil {
		t.Error("adopted twice")
	}
	if err := n.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(idle.Tap()); err == nil {
		t.Error("a tap that nobody adopted is still there")
	}
	if err := s.SetPolicy(&Policy{Allow: rules(t, world)}); err != nil {
		t.Fatal(err)
	}
	ask(t, c, "after")
	other, err := n.Attach("b", &Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if other.state.Epoch <= s.state.Epoch {
		t.Errorf("attachment %d came after %d", other.state.Epoch, s.state.Epoch)
	}
	if err := errors.Join(other.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}
