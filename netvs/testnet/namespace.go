package testnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Limit bounds every wait on a connection.
const Limit = 10 * time.Second

// Namespace is a network namespace, kept by its file descriptor.
type Namespace struct{ fd int }

// NewNamespace makes one, with its loopback up.
func NewNamespace() (*Namespace, error) {
	type made struct {
		fd  int
		err error
	}
	done := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: err}
			return
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		done <- made{fd, err}
	}()
	m := <-done
	if m.err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", m.err)
	}
	ns := &Namespace{m.fd}
	err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// Here is the caller's namespace.
func Here() (*Namespace, error) {
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open this network namespace: %w", err)
	}
	return &Namespace{fd}, nil
}

// Close lets go of the namespace.
func (ns *Namespace) Close() error { return unix.Close(ns.fd) }

// Do runs f in the namespace. Sockets that it opens stay there.
func (ns *Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Dial connects from the namespace; the connection's deadline is Limit from now.
func (ns *Namespace) Dial(network, addr string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Limit)
		defer cancel()
		c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return err
		}
		return c.SetDeadline(time.Now().Add(Limit))
	})
	return c, err
}

// Listen listens for streams in the namespace.
func (ns *Namespace) Listen(addr string) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = net.Listen("tcp4", addr)
		return err
	})
	return l, err
}

// ListenPacket listens for datagrams, or with another network than "udp4" for raw packets.
func (ns *Namespace) ListenPacket(network, addr string) (c net.PacketConn, err error) {
	err = ns.Do(func() error {
		c, err = net.ListenPacket(network, addr)
		return err
	})
	return c, err
}

// AddAddr gives a device of the caller's namespace an address, and brings it up.
func AddAddr(device, cidr string) error {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(dev, addr); err != nil {
		return fmt.Errorf("give %s the address %s: %w", device, cidr, err)
	}
	return netlink.LinkSetUp(dev)
}

func addDefaultRoute(device, gateway string) error {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: net.ParseIP(gateway)}); err != nil {
		return fmt.Errorf("route by %s: %w", gateway, err)
	}
	return nil
}
