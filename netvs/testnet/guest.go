package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// headerBytes is the virtio-net header before each frame.
const headerBytes = 12

// Guest is a namespace behind a tap.
type Guest struct {
	*Namespace
	tap, nic *os.File
	copying  sync.WaitGroup
}

// Address is what a guest has inside.
type Address struct {
	MAC     net.HardwareAddr
	Addr    netip.Prefix
	Gateway netip.Addr
}

// NewGuest makes a guest and copies frames, with their virtio-net headers, between it and the tap, of which it takes
// a descriptor of its own.
func NewGuest(tap *os.File, inside Address) (*Guest, error) {
	ns, err := NewNamespace()
	if err != nil {
		return nil, err
	}
	g := &Guest{Namespace: ns}
	if g.tap, err = Dup(tap); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	if err := ns.Do(func() error { return g.makeNIC(inside) }); err != nil {
		return nil, errors.Join(err, g.tap.Close(), ns.Close())
	}
	if err := control(g.tap, setOffloads); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.copying.Go(func() { copyFrames(g.tap, g.nic) })
	g.copying.Go(func() { copyFrames(g.nic, g.tap) })
	return g, nil
}

// Close ends the guest.
func (g *Guest) Close() error {
	err := errors.Join(g.tap.Close(), g.nic.Close())
	g.copying.Wait()
	return errors.Join(err, g.Namespace.Close())
}

// Send puts a raw frame onto the tap, as a hostile guest may.
func (g *Guest) Send(frame []byte) error {
	_, err := g.tap.Write(append(make([]byte, headerBytes), frame...))
	return err
}

func (g *Guest) makeNIC(inside Address) error {
	f, err := OpenTap("g0")
	if err != nil {
		return err
	}
	g.nic = f
	if err := control(f, setOffloads); err != nil {
		return err
	}
	dev, err := netlink.LinkByName("g0")
	if err != nil {
		return fmt.Errorf("find the guest's device: %w", err)
	}
	// IPv6's first words would be counted as denied.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/g0/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(netlink.LinkSetHardwareAddr(dev, inside.MAC), AddAddr("g0", inside.Addr.String()), addDefaultRoute("g0", inside.Gateway.String()))
}

// OpenTap makes a tap in the caller's namespace, which ends with its descriptor.
func OpenTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, headerBytes)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// setOffloads does what a Linux guest and the VMM agree on: checksums and TCP segmentation by the other side.
func setOffloads(fd int) error {
	return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
}

// Dup returns another descriptor of the same open file, as a VMM gets of a tap.
func Dup(f *os.File) (*os.File, error) {
	own := -1
	err := control(f, func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(own), f.Name()), nil
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// copyFrames stands in for the VMM's virtio-net: frames and their headers go across as they are. It ends when either
// side is closed; a frame that a side does not take is lost, as on a wire.
func copyFrames(to, from *os.File) {
	buf := make([]byte, headerBytes+14+65536)
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
