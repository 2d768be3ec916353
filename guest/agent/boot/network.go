package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// card is the name that the kernel gives the only network card.
const card = "eth0"

// network is how the guest is connected, cella.net=ADDRESS/BITS,GATEWAY on the kernel command line. It is the same
// in every guest, so that a restored one needs nothing new. The gateway is the resolver as well.
type network struct {
	addr    netip.Prefix
	gateway netip.Addr
}

// parseNetwork gives the zero network for what is none.
func parseNetwork(value string) network {
	addr, gateway, _ := strings.Cut(value, ",")
	p, err1 := netip.ParsePrefix(addr)
	g, err2 := netip.ParseAddr(gateway)
	if errors.Join(err1, err2) != nil || !p.Addr().Is4() || !g.Is4() {
		return network{}
	}
	return network{p, g}
}

// connect sets the card up. A guest without one, or whose host says nothing of a network, has its loopback only.
func connect(n network) error {
	if _, err := os.Stat("/sys/class/net/" + card); err != nil || !n.addr.IsValid() {
		return nil
	}
	// The network has no IPv6. Left on, the kernel would ask for routers, and programs try it first.
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+card+"/disable_ipv6", []byte("1"), 0o644)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("switch IPv6 of %s off: %w", card, err)
	}
	if err := setAddress(n.addr); err != nil {
		return fmt.Errorf("give %s the address %v: %w", card, n.addr, err)
	}
	if err := setUp(card); err != nil {
		return err
	}
	if err := addDefaultRoute(n.gateway); err != nil {
		return fmt.Errorf("route by %v: %w", n.gateway, err)
	}
	return writeResolver(n.gateway)
}

// setAddress uses the ioctls of netdevice(7).
func setAddress(addr netip.Prefix) error {
	mask := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-addr.Bits()))))
	for _, set := range []struct {
		request uint
		value   netip.Addr
	}{{unix.SIOCSIFADDR, addr.Addr()}, {unix.SIOCSIFNETMASK, mask}} {
		err := interfaceRequest(card, func(fd int, req *unix.Ifreq) error {
			if err := req.SetInet4Addr(set.value.AsSlice()); err != nil {
				return err
			}
			return unix.IoctlIfreq(fd, set.request, req)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// setUp brings an interface up; the kernel then gives lo 127.0.0.1 and ::1.
func setUp(name string) error {
	err := interfaceRequest(name, func(fd int, req *unix.Ifreq) error {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return err
		}
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	})
	if err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

func interfaceRequest(name string, do func(fd int, req *unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	return do(fd, req)
}

// addDefaultRoute sends one RTM_NEWROUTE (rtnetlink(7)) and reads the answer.
func addDefaultRoute(gateway netip.Addr) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, defaultRoute(gateway), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, err := unix.Read(fd, answer)
	if err != nil {
		return err
	}
	// An NLMSG_ERROR begins, behind its header, with a negative error number, 0 for success.
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is not one")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// defaultRoute is the message: a header (length, type, flags, sequence, port), struct rtmsg, and RTA_GATEWAY.
func defaultRoute(gateway netip.Addr) []byte {
	const size = unix.NLMSG_HDRLEN + unix.SizeofRtMsg + unix.SizeofRtAttr + 4
	le := binary.NativeEndian
	b := le.AppendUint32(nil, size)
	b = le.AppendUint16(b, unix.RTM_NEWROUTE)
	b = le.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	b = append(b, make([]byte, 8)...)
	b = append(b, unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0)
	b = le.AppendUint16(b, unix.SizeofRtAttr+4)
	b = le.AppendUint16(b, unix.RTA_GATEWAY)
	return append(b, gateway.AsSlice()...)
}

// writeResolver replaces what the image has, often a link to another system's file.
func writeResolver(addr netip.Addr) error {
	const name = "/etc/resolv.conf"
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	if err := os.WriteFile(name, []byte("nameserver "+addr.String()+"\n"), 0o644); err != nil {
		return fmt.Errorf("name the resolver: %w", err)
	}
	return nil
}
