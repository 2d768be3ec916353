package netvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostRoutes lists where the host's routes lead, but for those of our own taps and of the resolver.
func hostRoutes(c Config) ([]netip.Prefix, error) {
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	ours, err := taps(c)
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, r := range routes {
		p, ok := toPrefix(r.Dst)
		if _, mine := ours[r.LinkIndex]; ok && !mine && p != netip.PrefixFrom(c.resolver(), 32) {
			out = append(out, p)
		}
	}
	return out, nil
}

// toPrefix says false for no network, which netlink means as the default route.
func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hostAddrs lists the host's own IPv4 addresses: no policy opens them.
func hostAddrs() ([]netip.Prefix, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, ok := toPrefix(a.IPNet); ok {
			out = append(out, netip.PrefixFrom(p.Addr(), 32))
		}
	}
	return out, nil
}

// addResolverAddr gives the loopback the address at which guests reach the host's resolver, and from which the host
// sends them ICMP errors.
func addResolverAddr(c Config) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(c.resolver(), 32)), Label: "lo:" + c.TapPrefix}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		return fmt.Errorf("give lo the address %v: %w", c.resolver(), err)
	}
	return nil
}

func removeResolverAddr(c Config) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	err = netlink.AddrDel(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(c.resolver(), 32)), Label: "lo:" + c.TapPrefix})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("take the address %v from lo: %w", c.resolver(), err)
	}
	return nil
}

// enableForwarding lets the host route at all. It is one switch for the host, so it stays on afterwards.
func enableForwarding() error { return sysctl("net/ipv4/ip_forward", "1") }

// sysctl sets a kernel parameter, given as its path below /proc/sys, unless it has the value.
func sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", name)
	if b, err := os.ReadFile(path); err == nil && string(b) == value+"\n" {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
	}
	return nil
}

// ensureBPFFS makes the directory, and mounts a bpffs at it unless it is on one.
func ensureBPFFS(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount a bpffs at %s (run as root): %w", dir, err)
	}
	return nil
}
