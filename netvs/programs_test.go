package netvs

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// What BPF_PROG_TEST_RUN returns of a packet.
const (
	next     = ^uint32(0) // TCX_NEXT: the kernel goes on with it
	drop     = 2          // TCX_DROP
	redirect = 7          // TCX_REDIRECT: an answer goes back to the guest
)

// The world of the table: everything outside is in the documentation ranges.
const (
	guest    = "169.254.0.21"
	gateway  = "169.254.0.22"
	hostSide = "10.77.0.9"
	resolver = "10.77.0.1"
	world    = "203.0.113.7"
	world2   = "198.51.100.20"
)

// loopback is where test runs happen: the kernel gives their packets to the namespace's lo.
const loopback = 1

// bench is a sandbox at lo with the programs ready to run.
type bench struct{ *tapObjects }

func newBench(tb testing.TB) bench {
	tb.Helper()
	o, err := loadObjects(netip.MustParseAddr(resolver), "", ebpf.LogLevelStats)
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			tb.Fatalf("%+v", v)
		}
		tb.Fatal(err)
	}
	tb.Cleanup(func() { o.Close() })
	if err := block(o.Blocked, neverReached, nil); err != nil {
		tb.Fatal(err)
	}
	if err := o.Traffic.Put(uint32(loopback), make([]tapCounters, ebpf.MustPossibleCPU())); err != nil {
		tb.Fatal(err)
	}
	b := bench{o}
	b.attach(tb, &Policy{Internet: true})
	return b
}

// attach gives the sandbox at lo a policy.
func (b bench) attach(tb testing.TB, p *Policy) {
	tb.Helper()
	entries, err := p.entries()
	if err != nil {
		tb.Fatal(err)
	}
	trie, err := newTrie()
	if err != nil {
		tb.Fatal(err)
	}
	defer trie.Close()
	if err := fill(trie, entries); err != nil {
		tb.Fatal(err)
	}
	if err := b.Policies.Put(uint32(0), trie); err != nil {
		tb.Fatal(err)
	}
	s := tapSandbox{Epoch: 7, HostAddr: networkOrder(netip.MustParseAddr(hostSide)), Flags: p.flags(len(entries))}
	if err := b.Sandboxes.Put(uint32(loopback), s); err != nil {
		tb.Fatal(err)
	}
}

// skb is the beginning of struct __sk_buff, as far as test runs use it.
type skb struct{ Len, PacketType, Mark uint32 }

func (b bench) run(tb testing.TB, p *ebpf.Program, mark uint32, packet []byte) (uint32, []byte) {
	tb.Helper()
	out := make([]byte, len(packet)+256)
	opts := &ebpf.RunOptions{Data: packet, DataOut: out, Context: skb{Mark: mark}}
	verdict, err := p.Run(opts)
	if err != nil {
		tb.Fatalf("run %x: %v", packet, err)
	}
	return verdict, opts.DataOut
}

// packets sums the counters of lo over the CPUs.
func (b bench) packets(tb testing.TB) (sum [reasons]uint64) {
	tb.Helper()
	var perCPU []tapCounters
	if err := b.Traffic.Lookup(uint32(loopback), &perCPU); err != nil {
		tb.Fatal(err)
	}
	for _, c := range perCPU {
		for i, n := range c.Packets {
			sum[i] += n
		}
	}
	return sum
}

// packetCase is a line of the table: a packet, what becomes of it, and how it is counted.
type packetCase struct {
	name    string
	packet  []byte
	verdict uint32
	reason  Reason
	// want is the packet afterwards; nil is unchanged.
	want []byte
}

// check runs the cases through one program.
func (b bench) check(t *testing.T, p *ebpf.Program, mark uint32, cases []packetCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := b.packets(t)
			verdict, got := b.run(t, p, mark, c.packet)
			after := b.packets(t)
			if verdict != c.verdict {
				t.Errorf("verdict is %d, want %d", int32(verdict), int32(c.verdict))
			}
			for r := range after {
				want := uint64(0)
				if Reason(r) == c.reason {
					want = 1
				}
				if n := after[r] - before[r]; n != want {
					t.Errorf("%d packets counted as %v, want %d", n, Reason(r), want)
				}
			}
			want := c.want
			if want == nil {
				want = c.packet
			}
			if !bytes.Equal(got, want) {
				t.Errorf("packet is\n%x, want\n%x", got, want)
			}
		})
	}
}

func pass(name string, packet, want []byte) packetCase {
	return packetCase{name, packet, next, PassedOut, want}
}

func refuse(name string, r Reason, packet []byte) packetCase {
	return packetCase{name, packet, drop, r, nil}
}

func TestFromGuestRewritesWhatItPasses(t *testing.T) {
	b := newBench(t)
	payload := []byte("an odd payload.")
	var cases []packetCase
	add := func(name string, h header, l4 func(src, dst string) []byte) {
		in, out := h, h
		in.src, out.src = guest, hostSide
		cases = append(cases, pass(name, fromGuest(ip4(in, l4(guest, h.dst))), fromGuest(ip4(out, l4(hostSide, h.dst)))))
	}
	// Source ports make no difference, whoever else listens on them.
	for _, port := range []uint16{1, 22, 53, 68, 80, 443, 3000, 9090, 32768, 49983, 65535} {
		add(fmt.Sprintf("tcp from port %d", port), header{dst: world, protocol: TCP},
			func(s, d string) []byte { return tcp(s, d, port, 443, 0x02, nil) })
		add(fmt.Sprintf("udp from port %d", port), header{dst: world, protocol: UDP},
			func(s, d string) []byte { return udp(s, d, port, 4433, payload) })
	}
	for n := range 5 {
		add(fmt.Sprintf("udp with %d bytes", n), header{dst: world, protocol: UDP},
			func(s, d string) []byte { return udp(s, d, 5000, 6000, payload[:n]) })
		add(fmt.Sprintf("tcp with %d bytes", n), header{dst: world, protocol: TCP},
			func(s, d string) []byte { return tcp(s, d, 5000, 6000, 0x18, payload[:n]) })
	}
	for _, flags := range []uint8{0x01, 0x04, 0x10, 0x11, 0x12, 0x14, 0x00, 0xff} {
		add(fmt.Sprintf("tcp with flags %#x", flags), header{dst: world, protocol: TCP},
			func(s, d string) []byte { return tcp(s, d, 40000, 80, flags, nil) })
	}
	add("udp without a checksum", header{dst: world, protocol: UDP},
		func(s, d string) []byte { return unsummed(udp(s, d, 5000, 6000, payload)) })
	add("a datagram of a full frame", header{dst: world, protocol: UDP},
		func(s, d string) []byte { return udp(s, d, 5000, 6000, make([]byte, 1472)) })
	add("ping", header{dst: world, protocol: ICMP}, func(_, _ string) []byte { return icmp(8, 0, 0x00070001, payload) })
	add("ping with TTL 1", header{dst: world, protocol: ICMP, ttl: 1}, func(_, _ string) []byte { return icmp(8, 0, 7, nil) })
	add("don't fragment", header{dst: world, protocol: TCP, frag: 0x4000},
		func(s, d string) []byte { return tcp(s, d, 1000, 80, 0x10, payload) })
	add("dns to another resolver", header{dst: "8.8.8.8", protocol: UDP},
		func(s, d string) []byte { return udp(s, d, 5000, 53, payload) })
	// Fragments: the first carries the transport header and its checksum, the others nothing to change.
	add("first fragment of udp", header{dst: world, protocol: UDP, frag: 0x2000},
		func(s, d string) []byte { return udp(s, d, 5000, 6000, make([]byte, 1472)) })
	add("first fragment of ping", header{dst: world, protocol: ICMP, frag: 0x2000},
		func(_, _ string) []byte { return icmp(8, 0, 7, make([]byte, 64)) })
	for _, p := range []Protocol{TCP, UDP, ICMP} {
		add("middle fragment of "+p.String(), header{dst: world, protocol: p, frag: 0x2000 | 185}, func(_, _ string) []byte { return payload })
		add("last fragment of "+p.String(), header{dst: world, protocol: p, frag: 185}, func(_, _ string) []byte { return payload[:1] })
	}
	// Padding behind the packet, as on short Ethernet frames, stays.
	short := fromGuest(ip4(header{src: guest, dst: world, protocol: UDP}, udp(guest, world, 1, 2, nil)))
	shortOut := fromGuest(ip4(header{src: hostSide, dst: world, protocol: UDP}, udp(hostSide, world, 1, 2, nil)))
	pad := make([]byte, 60-len(short))
	cases = append(cases, pass("padded frame", append(short, pad...), append(shortOut, pad...)))
	b.check(t, b.FromGuest, 0, cases)
}

func TestFromGuestReachesTheResolverThroughTheGateway(t *testing.T) {
	b := newBench(t)
	query := func(src, dst string) []byte { return udp(src, dst, 5353, 53, []byte("query")) }
	syn := func(src, dst string) []byte { return tcp(src, dst, 5353, 53, 0x02, nil) }
	in := func(p Protocol, l4 func(_, _ string) []byte) []byte {
		return fromGuest(ip4(header{src: guest, dst: gateway, protocol: p}, l4(guest, gateway)))
	}
	out := func(p Protocol, l4 func(_, _ string) []byte) []byte {
		return fromGuest(ip4(header{src: hostSide, dst: resolver, protocol: p}, l4(hostSide, resolver)))
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		pass("dns over udp", in(UDP, query), out(UDP, query)),
		pass("dns over tcp", in(TCP, syn), out(TCP, syn)),
		refuse("fragmented dns", DropGateway,
			fromGuest(ip4(header{src: guest, dst: gateway, protocol: UDP, frag: 0x2000}, query(guest, gateway)))),
		refuse("the resolver's own address", DropBlocked,
			fromGuest(ip4(header{src: guest, dst: resolver, protocol: UDP}, query(guest, resolver)))),
	})
	noDNS := tapSandbox{Epoch: 7, HostAddr: networkOrder(netip.MustParseAddr(hostSide)), Flags: allowDefault}
	if err := b.Sandboxes.Put(uint32(loopback), noDNS); err != nil {
		t.Fatal(err)
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		refuse("dns where there is no resolver", DropGateway, in(UDP, query)),
	})
}

func TestGatewayAnswersInTheProgram(t *testing.T) {
	b := newBench(t)
	ping := func(src, dst string, kind uint8, data []byte) []byte {
		return ip4(header{src: src, dst: dst, protocol: ICMP}, icmp(kind, 0, 0x00070001, data))
	}
	zero := make(net.HardwareAddr, 6)
	answered := func(name string, packet, want []byte) packetCase {
		return packetCase{name, packet, redirect, Answered, want}
	}
	reply := frame(GuestMAC, GatewayMAC, etherARP, arp(2, GatewayMAC, gateway, GuestMAC, guest))
	b.check(t, b.FromGuest, 0, []packetCase{
		answered("arp question", frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, guest, zero, gateway)), reply),
		answered("arp question to the gateway alone", frame(GatewayMAC, GuestMAC, etherARP, arp(1, GuestMAC, guest, GatewayMAC, gateway)), reply),
		answered("arp probe for the gateway", frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, "0.0.0.0", zero, gateway)),
			frame(GuestMAC, GatewayMAC, etherARP, arp(2, GatewayMAC, gateway, GuestMAC, "0.0.0.0"))),
		answered("ping", fromGuest(ping(guest, gateway, 8, []byte("abcdefg"))), toGuest(ping(gateway, guest, 0, []byte("abcdefg")))),
		answered("empty ping", fromGuest(ping(guest, gateway, 8, nil)), toGuest(ping(gateway, guest, 0, nil))),
		answered("full ping", fromGuest(ping(guest, gateway, 8, make([]byte, 1472))), toGuest(ping(gateway, guest, 0, make([]byte, 1472)))),
		refuse("ping of an answer", DropICMPType, fromGuest(ping(guest, gateway, 0, nil))),
		refuse("http", DropGateway, fromGuest(ip4(header{src: guest, dst: gateway, protocol: TCP}, tcp(guest, gateway, 4000, 80, 2, nil)))),
		refuse("fragmented ping", DropGateway,
			fromGuest(ip4(header{src: guest, dst: gateway, protocol: ICMP, frag: 0x2000}, icmp(8, 0, 7, make([]byte, 64))))),
		refuse("later fragment", DropGateway, fromGuest(ip4(header{src: guest, dst: gateway, protocol: UDP, frag: 8}, make([]byte, 64)))),
	})
}

func TestFromGuestRefusesForgedFrames(t *testing.T) {
	b := newBench(t)
	ok := ip4(header{src: guest, dst: world, protocol: UDP}, udp(guest, world, 1, 2, nil))
	other := net.HardwareAddr{0x02, 0xce, 0x11, 0xa0, 0x00, 0x99}
	zero := make(net.HardwareAddr, 6)
	odd := func(i int, v byte) []byte {
		a := arp(1, GuestMAC, guest, zero, gateway)
		a[i] = v
		return frame(broadcast, GuestMAC, etherARP, a)
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		refuse("another's MAC", DropSourceMAC, frame(GatewayMAC, other, etherIPv4, ok)),
		refuse("the gateway's MAC", DropSourceMAC, frame(GatewayMAC, GatewayMAC, etherIPv4, ok)),
		refuse("a multicast MAC", DropSourceMAC, frame(GatewayMAC, broadcast, etherIPv4, ok)),
		refuse("to another's MAC", DropDestinationMAC, frame(other, GuestMAC, etherIPv4, ok)),
		refuse("to its own MAC", DropDestinationMAC, frame(GuestMAC, GuestMAC, etherIPv4, ok)),
		refuse("ip by broadcast", DropDestinationMAC, frame(broadcast, GuestMAC, etherIPv4, ok)),
		refuse("ip by multicast", DropDestinationMAC, frame(net.HardwareAddr{1, 0, 0x5e, 0, 0, 251}, GuestMAC, etherIPv4, ok)),
		refuse("vlan tag", DropEtherType, frame(GatewayMAC, GuestMAC, etherVLAN, append([]byte{0, 5, 8, 0}, ok...))),
		refuse("provider vlan tag", DropEtherType, frame(GatewayMAC, GuestMAC, 0x88a8, append([]byte{0, 5, 8, 0}, ok...))),
		refuse("mpls", DropEtherType, frame(GatewayMAC, GuestMAC, 0x8847, append([]byte{0, 0, 1, 64}, ok...))),
		refuse("lldp", DropEtherType, frame(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 14}, GuestMAC, 0x88cc, make([]byte, 46))),
		refuse("pppoe", DropEtherType, frame(GatewayMAC, GuestMAC, 0x8863, make([]byte, 46))),
		refuse("ieee 802.3 length", DropEtherType, frame(GatewayMAC, GuestMAC, 46, make([]byte, 46))),
		refuse("reverse arp", DropEtherType, frame(broadcast, GuestMAC, 0x8035, make([]byte, 46))),
		refuse("ipv6", DropIPv6, frame(GatewayMAC, GuestMAC, etherIPv6, make([]byte, 40))),
		refuse("ipv6 neighbour discovery", DropIPv6, frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, GuestMAC, etherIPv6, make([]byte, 72))),

		refuse("arp answer to the gateway", DropARP, frame(GatewayMAC, GuestMAC, etherARP, arp(2, GuestMAC, guest, GatewayMAC, gateway))),
		refuse("arp answer as the gateway", DropARP, frame(GatewayMAC, GuestMAC, etherARP, arp(2, GuestMAC, gateway, GatewayMAC, gateway))),
		refuse("arp question as the gateway", DropARP, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, gateway, zero, gateway))),
		refuse("arp question as a neighbour", DropARP, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, "169.254.0.20", zero, gateway))),
		refuse("arp question with another's MAC inside", DropARP, frame(broadcast, GuestMAC, etherARP, arp(1, other, guest, zero, gateway))),
		refuse("reverse arp request", DropARP, frame(broadcast, GuestMAC, etherARP, arp(3, GuestMAC, guest, zero, gateway))),
		refuse("arp to a neighbour's MAC", DropDestinationMAC, frame(other, GuestMAC, etherARP, arp(1, GuestMAC, guest, zero, gateway))),
		refuse("arp for a neighbour", DropARPIdle, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, guest, zero, "169.254.0.20"))),
		refuse("arp announcement", DropARPIdle, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, guest, zero, guest))),
		refuse("arp probe of its own address", DropARPIdle, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, "0.0.0.0", zero, guest))),
		refuse("short arp", DropMalformed, frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, guest, zero, gateway)[:27])),
		refuse("arp for other hardware", DropMalformed, odd(1, 6)),
		refuse("arp for another protocol", DropMalformed, odd(2, 0x86)),
		refuse("arp with long hardware addresses", DropMalformed, odd(4, 8)),
		refuse("arp with long protocol addresses", DropMalformed, odd(5, 16)),
	})
}

func TestFromGuestRefusesForgedIP(t *testing.T) {
	b := newBench(t)
	u := udp(guest, world, 5000, 6000, []byte("data"))
	s := tcp(guest, world, 5000, 6000, 2, nil)
	var cases []packetCase
	add := func(name string, r Reason, h header, payload []byte) {
		if h.src == "" {
			h.src = guest
		}
		if h.dst == "" {
			h.dst = world
		}
		if h.protocol == 0 {
			h.protocol = UDP
		}
		cases = append(cases, refuse(name, r, fromGuest(ip4(h, payload))))
	}
	for _, src := range []string{"169.254.0.20", gateway, hostSide, "10.77.0.10", resolver, "127.0.0.1", "0.0.0.0", "255.255.255.255", world, "224.0.0.1"} {
		add("source "+src, DropSourceIP, header{src: src}, u)
	}
	for _, v := range []uint8{1, 5, 6, 15} {
		add(fmt.Sprintf("version %d", v), DropMalformed, header{version: v}, u)
	}
	for _, words := range []uint8{1, 4} {
		add(fmt.Sprintf("header of %d words", words), DropMalformed, header{words: words}, u)
	}
	add("header longer than the packet", DropMalformed, header{words: 15}, u)
	add("total longer than the frame", DropMalformed, header{total: 33}, u)
	add("total of 65535", DropMalformed, header{total: 65535}, u)
	add("total shorter than the header", DropMalformed, header{total: 19}, u)
	add("total without the transport header", DropMalformed, header{total: 27}, u)
	add("reserved flag", DropMalformed, header{frag: 0x8000}, u)
	add("strict source route", DropOptions, header{options: []byte{137, 7, 4, 203, 0, 113, 9, 0}}, u)
	add("loose source route", DropOptions, header{options: []byte{131, 7, 4, 203, 0, 113, 9, 0}}, u)
	add("record route", DropOptions, header{options: []byte{7, 7, 4, 0, 0, 0, 0, 0}}, u)
	add("timestamp option", DropOptions, header{options: []byte{68, 8, 5, 0, 0, 0, 0, 0}}, u)
	add("router alert", DropOptions, header{options: []byte{148, 4, 0, 0}}, u)
	add("no-operation options", DropOptions, header{options: []byte{1, 1, 1, 0}}, u)
	for _, p := range []Protocol{2, 3, 4, 41, 43, 44, 47, 50, 51, 58, 60, 89, 94, 97, 103, 112, 115, 132, 136, 137, 143, 253, 255} {
		add("protocol "+p.String(), DropProtocol, header{protocol: p}, make([]byte, 40))
	}
	for _, kind := range []uint8{0, 1, 4, 5, 9, 10, 13, 14, 15, 17, 18, 30, 42, 255} {
		add(fmt.Sprintf("icmp type %d", kind), DropICMPType, header{protocol: ICMP}, icmp(kind, 0, 0, make([]byte, 28)))
	}
	for _, n := range []int{0, 1, 3, 4, 7} {
		add(fmt.Sprintf("udp of %d bytes", n), DropMalformed, header{}, u[:n])
		add(fmt.Sprintf("first fragment with %d bytes of udp", n), DropFragment, header{frag: 0x2000}, u[:n])
	}
	for _, n := range []int{0, 4, 8, 16, 19} {
		add(fmt.Sprintf("tcp of %d bytes", n), DropMalformed, header{protocol: TCP}, s[:n])
		add(fmt.Sprintf("first fragment with %d bytes of tcp", n), DropFragment, header{protocol: TCP, frag: 0x2000}, s[:n])
	}
	shortUDP := bytes.Clone(u)
	shortUDP[4], shortUDP[5] = 0, 7
	add("udp that says it is shorter than its header", DropMalformed, header{}, shortUDP)
	for _, words := range []uint8{0, 4, 6, 15} {
		lying := bytes.Clone(s)
		lying[12] = words << 4
		add(fmt.Sprintf("tcp header of %d words", words), DropMalformed, header{protocol: TCP}, lying)
	}
	add("icmp of 7 bytes", DropMalformed, header{protocol: ICMP}, icmp(8, 0, 0, nil)[:7])
	add("fragmented icmp error", DropICMPType, header{protocol: ICMP, frag: 0x2000}, icmp(3, 3, 0, make([]byte, 32)))
	b.check(t, b.FromGuest, 0, cases)
}

func TestNoPolicyOpensBlockedRanges(t *testing.T) {
	b := newBench(t)
	b.attach(t, &Policy{Internet: true, Allow: []Rule{{Prefix: everything}}})
	var cases []packetCase
	to := func(dst string) []byte {
		return fromGuest(ip4(header{src: guest, dst: dst, protocol: TCP}, tcp(guest, dst, 1000, 80, 2, nil)))
	}
	for _, p := range neverReached {
		first, last := p.Addr(), lastOf(p)
		if first.String() != gateway {
			cases = append(cases, refuse("first of "+p.String(), DropBlocked, to(first.String())))
		}
		if last != first {
			cases = append(cases, refuse("last of "+p.String(), DropBlocked, to(last.String())))
		}
	}
	for _, dst := range []string{"1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255"} {
		out := fromGuest(ip4(header{src: hostSide, dst: dst, protocol: TCP}, tcp(hostSide, dst, 1000, 80, 2, nil)))
		cases = append(cases, pass("just outside, "+dst, to(dst), out))
	}
	cases = append(cases,
		refuse("a later fragment to a neighbour", DropBlocked, fromGuest(ip4(header{src: guest, dst: "10.77.0.10", protocol: UDP, frag: 100}, make([]byte, 8)))),
		refuse("ping of the metadata service", DropBlocked, fromGuest(ip4(header{src: guest, dst: "169.254.169.254", protocol: ICMP}, icmp(8, 0, 0, nil)))),
	)
	b.check(t, b.FromGuest, 0, cases)

	if err := block(b.Blocked, neverReached, []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		pass("opened by the operator", to("10.20.3.4"),
			fromGuest(ip4(header{src: hostSide, dst: "10.20.3.4", protocol: TCP}, tcp(hostSide, "10.20.3.4", 1000, 80, 2, nil)))),
		refuse("beside what the operator opened", DropBlocked, to("10.21.0.0")),
	})
	if err := block(b.Blocked, neverReached, nil); err != nil {
		t.Fatal(err)
	}
	b.check(t, b.FromGuest, 0, []packetCase{refuse("closed again", DropBlocked, to("10.20.3.4"))})
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

func TestICMPErrorsKeepTheirQuotes(t *testing.T) {
	b := newBench(t)
	quote := func(src, dst string, l4 []byte) []byte { return ip4(header{src: src, dst: dst, protocol: UDP}, l4) }
	// The guest complains of a datagram from the world; the world knows it by the host-side address.
	out := func(hdrSrc, quoted string, kind uint8) []byte {
		q := quote(world, quoted, udp(world, quoted, 53, 5000, []byte("late")))
		return fromGuest(ip4(header{src: hdrSrc, dst: world, protocol: ICMP}, icmp(kind, 3, 0, q)))
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		pass("port unreachable", out(guest, guest, 3), out(hostSide, hostSide, 3)),
		pass("time exceeded", out(guest, guest, 11), out(hostSide, hostSide, 11)),
		pass("parameter problem", out(guest, guest, 12), out(hostSide, hostSide, 12)),
		refuse("about somebody else's packet", DropSourceIP, out(guest, "203.0.113.99", 3)),
		refuse("about a neighbour's packet", DropSourceIP, out(guest, "10.77.0.10", 3)),
		refuse("without a quote", DropMalformed, fromGuest(ip4(header{src: guest, dst: world, protocol: ICMP}, icmp(3, 3, 0, nil)))),
		refuse("with half a quote", DropMalformed, fromGuest(ip4(header{src: guest, dst: world, protocol: ICMP}, icmp(3, 3, 0, make([]byte, 19))))),
	})

	// A router complains of the guest's packet, and quotes as much as it likes.
	full := tcp(guest, world2, 5000, 443, 0x10, []byte("0123456789"))
	fullOut := tcp(hostSide, world2, 5000, 443, 0x10, []byte("0123456789"))
	in := func(dst, src string, p Protocol, l4 []byte, rest uint32) []byte {
		q := ip4(header{src: src, dst: world2, protocol: p}, l4)
		return toGuest(ip4(header{src: world, dst: dst, protocol: ICMP}, icmp(3, 4, rest, q)))
	}
	arrived := func(name string, packet, want []byte) packetCase {
		return packetCase{name, packet, next, PassedIn, want}
	}
	u, uOut := udp(guest, world2, 5000, 443, []byte("x")), udp(hostSide, world2, 5000, 443, []byte("x"))
	b.check(t, b.ToGuest, markEstablished, []packetCase{
		arrived("fragmentation needed, whole tcp header", in(hostSide, hostSide, TCP, fullOut, 1280), in(guest, guest, TCP, full, 1280)),
		arrived("fragmentation needed, 8 bytes of tcp", in(hostSide, hostSide, TCP, fullOut[:8], 1280), in(guest, guest, TCP, full[:8], 1280)),
		arrived("of udp", in(hostSide, hostSide, UDP, uOut, 0), in(guest, guest, UDP, u, 0)),
		arrived("of udp without checksum", in(hostSide, hostSide, UDP, unsummed(bytes.Clone(uOut)), 0), in(guest, guest, UDP, unsummed(bytes.Clone(u)), 0)),
		arrived("of a ping", in(hostSide, hostSide, ICMP, icmp(8, 0, 7, nil), 0), in(guest, guest, ICMP, icmp(8, 0, 7, nil), 0)),
		refuse("of a packet the guest never sent", DropUnsolicited, in(hostSide, "10.77.0.10", TCP, fullOut, 0)),
		refuse("without a quote", DropMalformed, toGuest(ip4(header{src: world, dst: hostSide, protocol: ICMP}, icmp(3, 4, 0, nil)))),
	})
}

func TestToGuestPassesOnlyEstablishedFlows(t *testing.T) {
	b := newBench(t)
	payload := []byte("answer")
	reply := func(src, dst string, p Protocol, l4 func(s, d string) []byte, options ...byte) []byte {
		return toGuest(ip4(header{src: src, dst: dst, protocol: p, options: options}, l4(src, dst)))
	}
	u := func(s, d string) []byte { return udp(s, d, 6000, 5000, payload) }
	s := func(s, d string) []byte { return tcp(s, d, 443, 5000, 0x12, nil) }
	pong := func(_, _ string) []byte { return icmp(0, 0, 7, payload) }
	frag := func(dst string, off uint16, l4 []byte) []byte {
		return toGuest(ip4(header{src: world, dst: dst, protocol: UDP, frag: off}, l4))
	}
	dns := func(s, d string) []byte { return udp(s, d, 53, 5000, payload) }
	arrived := func(name string, packet, want []byte) packetCase {
		return packetCase{name, packet, next, PassedIn, want}
	}
	b.check(t, b.ToGuest, markEstablished, []packetCase{
		arrived("udp", reply(world, hostSide, UDP, u), reply(world, guest, UDP, u)),
		arrived("tcp", reply(world, hostSide, TCP, s), reply(world, guest, TCP, s)),
		arrived("pong", reply(world, hostSide, ICMP, pong), reply(world, guest, ICMP, pong)),
		arrived("with options", reply(world, hostSide, TCP, s, 1, 1, 1, 0), reply(world, guest, TCP, s, 1, 1, 1, 0)),
		arrived("first fragment", frag(hostSide, 0x2000, udp(world, hostSide, 6000, 5000, make([]byte, 64))),
			frag(guest, 0x2000, udp(world, guest, 6000, 5000, make([]byte, 64)))),
		arrived("last fragment", frag(hostSide, 9, payload), frag(guest, 9, payload)),
		arrived("from the resolver", reply(resolver, hostSide, UDP, dns), reply(gateway, guest, UDP, dns)),
		refuse("another's address", DropDestinationIP, reply(world, "10.77.0.10", UDP, u)),
		refuse("the address inside", DropDestinationIP, reply(world, guest, UDP, u)),
		refuse("broadcast", DropDestinationIP, reply(world, "255.255.255.255", UDP, u)),
		refuse("redirect", DropICMPType, toGuest(ip4(header{src: world, dst: hostSide, protocol: ICMP}, icmp(5, 1, 0, make([]byte, 28))))),
		refuse("ping", DropICMPType, toGuest(ip4(header{src: world, dst: hostSide, protocol: ICMP}, icmp(8, 0, 7, nil)))),
		refuse("ipv6", DropIPv6, frame(GuestMAC, GatewayMAC, etherIPv6, make([]byte, 40))),
		refuse("arp", DropEtherType, frame(broadcast, GatewayMAC, etherARP, arp(1, GatewayMAC, gateway, make([]byte, 6), hostSide))),
		refuse("version 6 as ipv4", DropMalformed, toGuest(ip4(header{src: world, dst: hostSide, protocol: UDP, version: 6}, u(world, hostSide)))),
	})
	for _, mark := range []uint32{0, 0x1, markEstablished >> 1, 0x00ff0000, 0x0000ce00} {
		b.check(t, b.ToGuest, mark, []packetCase{
			refuse(fmt.Sprintf("udp with mark %#x", mark), DropUnsolicited, reply(world, hostSide, UDP, u)),
			refuse(fmt.Sprintf("tcp with mark %#x", mark), DropUnsolicited, reply(world, hostSide, TCP, s)),
		})
	}
	b.check(t, b.ToGuest, markEstablished|0x80000001, []packetCase{
		arrived("with other marks beside ours", reply(world, hostSide, UDP, u), reply(world, guest, UDP, u)),
	})
}

func TestDetachedTapIsSilent(t *testing.T) {
	b := newBench(t)
	if err := b.Sandboxes.Put(uint32(loopback), tapSandbox{}); err != nil {
		t.Fatal(err)
	}
	p := ip4(header{src: guest, dst: world, protocol: UDP}, udp(guest, world, 1, 2, nil))
	q := arp(1, GuestMAC, guest, make([]byte, 6), gateway)
	b.check(t, b.FromGuest, 0, []packetCase{
		refuse("ip", DropDetached, fromGuest(p)),
		refuse("arp", DropDetached, frame(broadcast, GuestMAC, etherARP, q)),
	})
	b.check(t, b.ToGuest, markEstablished, []packetCase{
		refuse("reply", DropDetached, toGuest(ip4(header{src: world, dst: hostSide, protocol: UDP}, udp(world, hostSide, 1, 2, nil)))),
	})
}

// TestVerifierEffort keeps the programs well below what the kernel is willing to verify (a million instructions).
func TestVerifierEffort(t *testing.T) {
	b := newBench(t)
	for name, p := range map[string]*ebpf.Program{"from_guest": b.FromGuest, "to_guest": b.ToGuest} {
		_, rest, ok := strings.Cut(p.VerifierLog, "processed ")
		var n int
		if _, err := fmt.Sscanf(rest, "%d insns", &n); !ok || err != nil {
			t.Fatalf("%s: no instruction count in %q", name, p.VerifierLog)
		}
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		ins, err := info.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d instructions, %d verified, log of %d bytes", name, len(ins), n, len(p.VerifierLog))
		if n > 50_000 {
			t.Errorf("%s: the verifier walked %d instructions", name, n)
		}
	}
}
