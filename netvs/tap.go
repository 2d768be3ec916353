package netvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapGroup is the device group of all taps: the rule set knows them by it.
const tapGroup = 0xce11a

// VnetHeaderBytes is the length of the virtio-net header before each frame (virtio 1.2 §5.1.6: with num_buffers).
const VnetHeaderBytes = 12

// tap is a device with its programs attached. Its file descriptor stays open from making to closing.
type tap struct {
	slot  int
	name  string
	index int // ifindex
	addr  netip.Addr
	file  *os.File
	links []link.Link
	live  liveTrie
}

func tapName(c Config, slot int) string { return c.TapPrefix + strconv.Itoa(slot) }

// taps lists the taps there are, by interface index. Their names tell, not their group: a process may have died
// before it set that.
func taps(c Config) (map[int]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	out := make(map[int]string)
	for _, l := range links {
		if _, ok := slotOf(c, l.Attrs().Name); ok && l.Type() == "tuntap" {
			out[l.Attrs().Index] = l.Attrs().Name
		}
	}
	return out, nil
}

func slotOf(c Config, name string) (int, bool) {
	number, ok := strings.CutPrefix(name, c.TapPrefix)
	slot, err := strconv.Atoi(number)
	return slot, ok && err == nil && slot >= 0 && slot < c.slots() && tapName(c, slot) == name
}

// makeTap makes the device of a slot whole: nothing can pass before it has its programs and is up.
func (n *Network) makeTap(slot int) (t *tap, err error) {
	t = &tap{slot: slot, name: tapName(n.cfg, slot), addr: n.cfg.addr(slot)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make tap %s: %w", t.name, err), n.destroy(t))
		}
	}()
	if t.file, err = openTap(t.name, unix.IFF_TUN_EXCL); err != nil {
		return t, err
	}
	dev, err := netlink.LinkByName(t.name)
	if err != nil {
		return t, fmt.Errorf("find it: %w", err)
	}
	t.index = dev.Attrs().Index
	if err := n.register(t); err != nil {
		return t, err
	}
	if err := configure(dev); err != nil {
		return t, err
	}
	if err := n.attachPrograms(t); err != nil {
		return t, err
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return t, fmt.Errorf("bring it up: %w", err)
	}
	return t, addNeighbour(dev, t.addr, n.cfg.resolver())
}

// openTap makes the device or, without IFF_TUN_EXCL, opens it. It outlives the descriptor, so that a restart of this
// process does not take the network of running sandboxes away.
func openTap(name string, flags uint16) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun (see `cella doctor`): %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, VnetHeaderBytes)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set it up: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil // it can be polled only now that it has a device
}

// control works on a descriptor without making it blocking, as os.File.Fd may: the VMM shares it.
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

// configure gives the device what all taps share. With the gateway's MAC, the kernel takes the guest's frames as
// addressed to itself. IPv6 is off, so that the kernel says nothing of its own to a guest.
func configure(dev netlink.Link) error {
	name := dev.Attrs().Name
	if err := netlink.LinkSetHardwareAddr(dev, GatewayMAC); err != nil {
		return fmt.Errorf("set its MAC: %w", err)
	}
	if err := netlink.LinkSetGroup(dev, tapGroup); err != nil {
		return fmt.Errorf("set its group: %w", err)
	}
	for _, s := range [][2]string{
		{"net/ipv4/conf/" + name + "/rp_filter", "1"},
		{"net/ipv4/conf/" + name + "/forwarding", "1"},
		{"net/ipv4/conf/" + name + "/send_redirects", "0"},
		{"net/ipv4/conf/" + name + "/accept_source_route", "0"},
		{"net/ipv4/conf/" + name + "/route_localnet", "0"},
	} {
		if err := sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	err := sysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// addNeighbour leads the host-side address to the guest, for good: no ARP is ever needed. What the host itself sends
// there, such as ICMP errors, comes from the resolver's address, which the guest sees as the gateway.
func addNeighbour(dev netlink.Link, addr, resolver netip.Addr) error {
	index := dev.Attrs().Index
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: GuestMAC,
	})
	if err != nil {
		return fmt.Errorf("set the guest as neighbour: %w", err)
	}
	err = netlink.RouteReplace(&netlink.Route{
		LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.PrefixFrom(addr, 32)), Src: resolver.AsSlice(),
	})
	if err != nil {
		return fmt.Errorf("route %v to it: %w", addr, err)
	}
	return nil
}

// attachPrograms attaches both programs: ours is the first to see what the guest sends, and the last to see what it gets.
func (n *Network) attachPrograms(t *tap) error {
	for _, a := range []struct {
		where  string
		prog   *ebpf.Program
		attach ebpf.AttachType
		anchor link.Anchor
	}{
		{"in", n.objects.FromGuest, ebpf.AttachTCXIngress, link.Head()},
		{"out", n.objects.ToGuest, ebpf.AttachTCXEgress, link.Tail()},
	} {
		l, err := link.AttachTCX(link.TCXOptions{Interface: t.index, Program: a.prog, Attach: a.attach, Anchor: a.anchor})
		if err != nil {
			return fmt.Errorf("attach the eBPF program (TCX, Linux 6.6 or later; see `cella doctor`): %w", err)
		}
		t.links = append(t.links, l)
		if err := l.Pin(n.linkPin(t.name, a.where)); err != nil {
			return fmt.Errorf("pin the eBPF program's link: %w", err)
		}
	}
	return nil
}

func (n *Network) linkPin(tap, where string) string {
	return filepath.Join(n.cfg.PinDir, tap+"-"+where)
}

// destroy takes a tap and all that belongs to it away, however far it came.
func (n *Network) destroy(t *tap) error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Unpin(), l.Close())
	}
	t.links = nil
	if t.file != nil {
		errs = append(errs, control(t.file, func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) }), t.file.Close())
		t.file = nil
	}
	if t.index != 0 {
		errs = append(errs, n.unregister(t))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove tap %s: %w", t.name, err)
	}
	return nil
}
