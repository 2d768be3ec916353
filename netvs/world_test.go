package netvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The host of these tests has one uplink, to a world that knows no route back to sandboxes:
//
//	guest g0 ═ frames copied by the test ═ tap │ host 203.0.113.1 ── veth ── 203.0.113.7, 198.51.100.20 world
//
// A guest is a network namespace with a kernel's own TCP/IP, as in a VM; the test stands in for the VMM.

const uplink = "203.0.113.1"

// limit bounds every wait of these tests.
const limit = 10 * time.Second

// namespace is a network namespace, kept by its file descriptor.
type namespace struct{ fd int }

func newNamespace(tb testing.TB) namespace {
	tb.Helper()
	fds := make(chan int, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fds <- -1
			return
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		fds <- fd
	}()
	ns := namespace{<-fds}
	if ns.fd < 0 {
		tb.Fatal("can't make a network namespace")
	}
	tb.Cleanup(func() { unix.Close(ns.fd) })
	ns.do(tb, func() error {
		lo, err := netlink.LinkByName("lo")
		return errors.Join(err, netlink.LinkSetUp(lo))
	})
	return ns
}

// try runs f in the namespace. Sockets that it opens stay there.
func (ns namespace) try(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (ns namespace) do(tb testing.TB, f func() error) {
	tb.Helper()
	if err := ns.try(f); err != nil {
		tb.Fatal(err)
	}
}

// dial connects from the namespace.
func (ns namespace) dial(network, addr string) (c net.Conn, err error) {
	return c, ns.try(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = c.SetDeadline(time.Now().Add(limit))
		}
		return err
	})
}

func (ns namespace) mustDial(tb testing.TB, network, addr string) net.Conn {
	tb.Helper()
	c, err := ns.dial(network, addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// addAddr gives a device an address and brings it up.
func addAddr(device, cidr string) error {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(dev, addr), netlink.LinkSetUp(dev))
}

func addDefaultRoute(device, gateway string) error {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: net.ParseIP(gateway)})
}

// newWorld connects the tests' namespace, as the host, with a world.
func newWorld(tb testing.TB) namespace {
	tb.Helper()
	ns := newNamespace(tb)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "w0", PeerNamespace: netlink.NsFd(ns.fd)}
	if err := netlink.LinkAdd(veth); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil {
			tb.Error(err)
		}
	})
	ns.do(tb, func() error { return errors.Join(addAddr("w0", world+"/24"), addAddr("lo", world2+"/32")) })
	if err := errors.Join(addAddr("up0", uplink+"/24"), addDefaultRoute("up0", world)); err != nil {
		tb.Fatal(err)
	}
	return ns
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
	nic  *os.File
	done sync.WaitGroup
}

// setOffloads does what a Linux guest and the VMM agree on: checksums and TCP segmentation by the other side.
func setOffloads(fd int) error {
	return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
}

// attachGuest attaches a sandbox and connects a guest to its tap.
func attachGuest(tb testing.TB, n *Network, id string, p *Policy) *fakeGuest {
	tb.Helper()
	s, err := n.Attach(id, p)
	if err != nil {
		tb.Fatal(err)
	}
	g := &fakeGuest{namespace: newNamespace(tb), Sandbox: s}
	g.do(tb, func() error { return g.makeNIC() })
	tapFile := dup(tb, s.File())
	if err := control(tapFile, setOffloads); err != nil {
		tb.Fatal(err)
	}
	g.done.Add(2)
	go g.copyFrames(tapFile, g.nic)
	go g.copyFrames(g.nic, tapFile)
	tb.Cleanup(func() {
		tapFile.Close()
		g.nic.Close()
		g.done.Wait()
		if err := s.Close(); err != nil && !errors.Is(err, ErrClosed) {
			tb.Error(err)
		}
	})
	return g
}

// dup is what a VMM gets of a tap: a descriptor of its own.
func dup(tb testing.TB, f *os.File) *os.File {
	tb.Helper()
	var own int
	err := control(f, func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return os.NewFile(uintptr(own), "tap")
}

func (g *fakeGuest) makeNIC() error {
	f, err := openTap("g0", 0)
	if err != nil {
		return err
	}
	g.nic = f
	if err := control(f, setOffloads); err != nil {
		return err
	}
	dev, err := netlink.LinkByName("g0")
	if err != nil {
		return err
	}
	if err := sysctl("net/ipv6/conf/g0/disable_ipv6", "1"); err != nil { // its first words would be counted
		return err
	}
	return errors.Join(netlink.LinkSetHardwareAddr(dev, GuestMAC), addAddr("g0", GuestAddr.String()), addDefaultRoute("g0", GatewayAddr.String()))
}

// copyFrames stands in for the VMM's virtio-net: frames and their headers go across as they are.
func (g *fakeGuest) copyFrames(to, from *os.File) {
	defer g.done.Done()
	buf := make([]byte, VnetHeaderBytes+14+65536)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// send puts a raw frame onto the tap, as a hostile guest may.
func (g *fakeGuest) send(tb testing.TB, frame []byte) error {
	tb.Helper()
	f := dup(tb, g.File())
	defer f.Close()
	_, err := f.Write(append(make([]byte, VnetHeaderBytes), frame...))
	return err
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
	var l net.Listener
	ns.do(tb, func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	})
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
	var c net.PacketConn
	ns.do(tb, func() (err error) {
		c, err = net.ListenPacket("udp4", addr)
		return err
	})
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
