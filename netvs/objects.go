package netvs

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Every guest has these, and no other guest ever sees them: nothing in it is configured anew after a restore. The
// addresses are link-local, so that they can't hide a network that a user wants to reach.
var (
	GuestAddr   = netip.MustParsePrefix("169.254.0.21/30")
	GatewayAddr = netip.MustParseAddr("169.254.0.22")
	GuestMAC    = net.HardwareAddr{0x02, 0xce, 0x11, 0xa0, 0x00, 0x15}
	GatewayMAC  = net.HardwareAddr{0x02, 0xce, 0x11, 0xa0, 0x00, 0x16}
)

// neverReached are the ranges that no policy opens: this host and its neighbours, in every disguise (RFC 6890).
// Only an operator's Config.Open makes holes in them.
var neverReached = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT, overlay networks
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local, metadata services
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks of network devices
	netip.MustParsePrefix("224.0.0.0/4"),      // multicast
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, and the broadcast address
	netip.MustParsePrefix("168.63.129.16/32"), // a cloud's metadata and wire server
}

// eventsPerSecond is how many denied packets one sandbox may have logged on one CPU; the rest are only counted.
const eventsPerSecond = 100

// loadObjects loads programs and maps into the kernel. Maps that are pinned below pinPath are taken over.
func loadObjects(resolver netip.Addr, pinPath string, log ebpf.LogLevel) (*tapObjects, error) {
	spec, err := loadTap()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		tapVarGuestAddr:       networkOrder(GuestAddr.Addr()),
		tapVarGatewayAddr:     networkOrder(GatewayAddr),
		tapVarResolverAddr:    networkOrder(resolver),
		tapVarGuestMac:        [6]byte(GuestMAC),
		tapVarGatewayMac:      [6]byte(GatewayMAC),
		tapVarEventsPerSecond: uint32(eventsPerSecond),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the eBPF programs: %w", name, err)
		}
	}
	if pinPath != "" {
		for _, name := range []string{tapMapSandboxes, tapMapTraffic, tapMapBlocked, tapMapPolicies, tapMapPins, tapMapEvents} {
			spec.Maps[name].Pinning = ebpf.PinByName
		}
	}
	var o tapObjects
	err = spec.LoadAndAssign(&o, &ebpf.CollectionOptions{
		Maps:     ebpf.MapOptions{PinPath: pinPath},
		Programs: ebpf.ProgramOptions{LogLevel: log},
	})
	if err != nil {
		return nil, fmt.Errorf("load the eBPF programs of the taps: %w", err)
	}
	return &o, nil
}

// block makes the trie hold the ranges that no policy opens, and the operator's holes in them. What must be closed
// stays closed at every moment; what a former configuration left goes last.
func block(m *ebpf.Map, closed, open []netip.Prefix) error {
	want := make(map[tapPrefix]uint32)
	for _, p := range closed {
		want[tapPrefix{Len: uint32(p.Bits()), Addr: networkOrder(p.Addr())}] = 1
	}
	for _, p := range open {
		want[tapPrefix{Len: uint32(p.Bits()), Addr: networkOrder(p.Addr())}] = 0
	}
	for key, value := range want {
		if err := m.Put(key, value); err != nil {
			return fmt.Errorf("block %v/%d: %w", hostOrder(key.Addr), key.Len, err)
		}
	}
	var stale []tapPrefix
	var key tapPrefix
	var value uint32
	it := m.Iterate()
	for it.Next(&key, &value) {
		if _, ok := want[key]; !ok {
			stale = append(stale, key)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("list blocked ranges: %w", err)
	}
	for _, key := range stale {
		if err := m.Delete(key); err != nil {
			return fmt.Errorf("unblock %v/%d: %w", hostOrder(key.Addr), key.Len, err)
		}
	}
	return nil
}
