package netvs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRequestPolicy(t *testing.T) {
	no := false
	all := "0.0.0.0/0"
	many := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("%d.%d.%d.0/%d", 1+i%8, i/256%256, i%256, 20+i%12)
		}
		return list
	}
	tests := []struct {
		name    string
		request Request
		// want is the policy, or err the error's text.
		want *Policy
		err  string
	}{
		{"nothing said", Request{}, &Policy{Internet: true}, ""},
		{"internet off", Request{AllowInternetAccess: &no}, &Policy{}, ""},
		{"address", Request{DenyOut: []string{"203.0.113.7"}}, &Policy{Internet: true, Deny: []Rule{{Prefix: netip.MustParsePrefix("203.0.113.7/32")}}}, ""},
		{"cidr with bits behind it", Request{DenyOut: []string{"203.0.113.7/24"}}, &Policy{Internet: true, Deny: []Rule{{Prefix: netip.MustParsePrefix("203.0.113.0/24")}}}, ""},
		{"everything of both families", Request{DenyOut: []string{all, "::/0"}},
			&Policy{Internet: true, Deny: []Rule{{Prefix: everything}, {Prefix: netip.MustParsePrefix("::/0")}}}, ""},
		{"the top of the space", Request{DenyOut: []string{"240.0.0.0/4"}}, &Policy{Internet: true, Deny: []Rule{{Prefix: netip.MustParsePrefix("240.0.0.0/4")}}}, ""},
		{"port", Request{AllowInternetAccess: &no, AllowOut: []string{"203.0.113.0/24 tcp/443"}},
			&Policy{Allow: []Rule{{netip.MustParsePrefix("203.0.113.0/24"), TCP, Ports{443, 443}}}}, ""},
		{"port range", Request{AllowInternetAccess: &no, AllowOut: []string{"203.0.113.7 udp/5000-5100"}},
			&Policy{Allow: []Rule{{netip.MustParsePrefix("203.0.113.7/32"), UDP, Ports{5000, 5100}}}}, ""},
		{"protocol", Request{AllowInternetAccess: &no, AllowOut: []string{"203.0.113.7 icmp"}},
			&Policy{Allow: []Rule{{Prefix: netip.MustParsePrefix("203.0.113.7/32"), Protocol: ICMP}}}, ""},
		{"names", Request{AllowOut: []string{"Example.org", "*.example.com", "1.1.1.1"}, DenyOut: []string{all}},
			&Policy{Internet: true, Allow: []Rule{{Prefix: netip.MustParsePrefix("1.1.1.1/32")}}, Deny: []Rule{{Prefix: everything}}, Names: []string{"example.org", "*.example.com"}}, ""},
		{"name with internet off", Request{AllowInternetAccess: &no, AllowOut: []string{"xn--bcher-kva.example"}}, &Policy{Names: []string{"xn--bcher-kva.example"}}, ""},

		{"name without deny all", Request{AllowOut: []string{"example.org"}}, nil,
			`allowOut[0] "example.org": a name restricts nothing unless denyOut has "0.0.0.0/0"`},
		{"name with only IPv6 denied", Request{AllowOut: []string{"example.org"}, DenyOut: []string{"::/0"}}, nil,
			`allowOut[0] "example.org": a name restricts nothing unless denyOut has "0.0.0.0/0"`},
		{"denied name", Request{DenyOut: []string{all, "example.org"}}, nil, `denyOut[1] "example.org": is a name; only addresses can be denied`},
		{"contradiction", Request{AllowOut: []string{"1.1.1.1", "203.0.113.0/24"}, DenyOut: []string{"203.0.113.0/24"}}, nil,
			`allowOut[1] "203.0.113.0/24": is in denyOut as well`},
		{"contradiction in other words", Request{AllowOut: []string{"203.0.113.9/24"}, DenyOut: []string{"203.0.113.0/24"}}, nil,
			`allowOut[0] "203.0.113.9/24": is in denyOut as well`},
		{"empty", Request{DenyOut: []string{""}}, nil, `denyOut[0] "": is neither an address, a CIDR nor a name`},
		{"long prefix", Request{DenyOut: []string{"10.0.0.0/33"}}, nil, `denyOut[0] "10.0.0.0/33": is not a CIDR such as 192.0.2.0/24`},
		{"no prefix", Request{DenyOut: []string{"10.0.0.0/"}}, nil, `denyOut[0] "10.0.0.0/": is not a CIDR such as 192.0.2.0/24`},
		{"negative prefix", Request{DenyOut: []string{"10.0.0.0/-1"}}, nil, `denyOut[0] "10.0.0.0/-1": is not a CIDR such as 192.0.2.0/24`},
		{"five parts", Request{DenyOut: []string{"10.0.0.0.0"}}, nil, `denyOut[0] "10.0.0.0.0": is neither an address, a CIDR nor a name`},
		{"part of 256", Request{AllowOut: []string{"10.0.0.256"}}, nil, `allowOut[0] "10.0.0.256": is neither an address, a CIDR nor a name`},
		{"octal part", Request{AllowOut: []string{"010.0.0.1"}}, nil, `allowOut[0] "010.0.0.1": is neither an address, a CIDR nor a name`},
		{"zone", Request{AllowOut: []string{"fe80::1%eth0"}}, nil, `allowOut[0] "fe80::1%eth0": an address with a zone means nothing to a sandbox`},
		{"mapped", Request{AllowOut: []string{"::ffff:1.2.3.4"}}, nil, `allowOut[0] "::ffff:1.2.3.4": write IPv4 addresses as such`},
		{"unknown protocol", Request{AllowOut: []string{"1.1.1.1 sctp/5"}}, nil, `allowOut[0] "1.1.1.1 sctp/5": "sctp" is none of tcp, udp and icmp`},
		{"port 0", Request{AllowOut: []string{"1.1.1.1 tcp/0"}}, nil, `allowOut[0] "1.1.1.1 tcp/0": "0" is not a port from 1 to 65535 nor a range of them`},
		{"port 65536", Request{AllowOut: []string{"1.1.1.1 tcp/65536"}}, nil, `allowOut[0] "1.1.1.1 tcp/65536": "65536" is not a port from 1 to 65535 nor a range of them`},
		{"port range backwards", Request{AllowOut: []string{"1.1.1.1 tcp/20-10"}}, nil, `allowOut[0] "1.1.1.1 tcp/20-10": "20-10" is not a port from 1 to 65535 nor a range of them`},
		{"ports of icmp", Request{AllowOut: []string{"1.1.1.1 icmp/8"}}, nil, `allowOut[0] "1.1.1.1 icmp/8": icmp has no ports`},
		{"international name", Request{AllowOut: []string{"bücher.example"}, DenyOut: []string{all}}, nil, `allowOut[0] "bücher.example": write international names in their ASCII form ("xn--…")`},
		{"trailing dot", Request{AllowOut: []string{"example.org."}, DenyOut: []string{all}}, nil, `allowOut[0] "example.org.": write names without the dot at the end`},
		{"wildcard in the middle", Request{AllowOut: []string{"a.*.example.org"}, DenyOut: []string{all}}, nil, `allowOut[0] "a.*.example.org": a wildcard stands only at the beginning, as in "*.example.org"`},
		{"half a wildcard", Request{AllowOut: []string{"*a.example.org"}, DenyOut: []string{all}}, nil, `allowOut[0] "*a.example.org": a wildcard stands only at the beginning, as in "*.example.org"`},
		{"wildcard alone", Request{AllowOut: []string{"*"}, DenyOut: []string{all}}, nil, `allowOut[0] "*": a wildcard stands only at the beginning, as in "*.example.org"`},
		{"empty label", Request{AllowOut: []string{"a..example"}, DenyOut: []string{all}}, nil, `allowOut[0] "a..example": each part of a name has 1 to 63 bytes`},
		{"long label", Request{AllowOut: []string{strings.Repeat("a", 64) + ".example"}, DenyOut: []string{all}}, nil,
			`allowOut[0] "` + strings.Repeat("a", 64) + `.example": each part of a name has 1 to 63 bytes`},
		{"hyphen first", Request{AllowOut: []string{"-a.example"}, DenyOut: []string{all}}, nil, `allowOut[0] "-a.example": no part of a name begins or ends with a hyphen`},
		{"space in a name", Request{AllowOut: []string{"exa mple.org"}, DenyOut: []string{all}}, nil, `allowOut[0] "exa mple.org": is neither an address, a CIDR nor a name`},
		{"url", Request{AllowOut: []string{"https://example.org"}, DenyOut: []string{all}}, nil, `allowOut[0] "https://example.org": is not a CIDR such as 192.0.2.0/24`},
		{"too many", Request{DenyOut: many(MaxRules + 1)}, nil, "allowOut and denyOut have 8193 entries, 8192 is the most: too many rules"},
		{"too many ports", Request{AllowInternetAccess: &no, AllowOut: []string{"1.1.1.1 tcp/1", "1.1.1.1 tcp/3", "1.1.1.1 tcp/5", "1.1.1.1 tcp/7", "1.1.1.1 tcp/9",
			"1.1.1.1 tcp/11", "1.1.1.1 tcp/13", "1.1.1.1 tcp/15", "1.1.1.1 tcp/17"}}, nil,
			"9 rules about protocols and ports meet at 1.1.1.1/32, 8 is the most: too many rules"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.request.Policy()
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != tt.err {
				t.Fatalf("error is %s\nwant %s", text, tt.err)
			}
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			var e *EntryError
			if err != nil && !errors.As(err, &e) && !errors.Is(err, ErrTooManyRules) {
				t.Error("the error is of no type that an API can tell")
			}
		})
	}
	if p, err := (Request{DenyOut: many(4000)}).Policy(); err != nil || len(p.Deny) != 4000 {
		t.Errorf("4,000 overlapping CIDRs: %v", err)
	}
}

func TestEntriesFold(t *testing.T) {
	tests := []struct {
		name        string
		allow, deny string
		want        string
	}{
		{"nothing", "", "", ""},
		{"twice the same", "", "203.0.113.0/24,203.0.113.0/24", "203.0.113.0/24 -any"},
		{"denied inside denied", "", "203.0.0.0/16,203.0.113.0/24", "203.0.0.0/16 -any"},
		{"denied inside allowed is allowed", "203.0.0.0/16", "203.0.113.0/24", "203.0.0.0/16 +any"},
		{"allowed inside denied", "203.0.113.0/24", "0.0.0.0/0", "0.0.0.0/0 -any; 203.0.113.0/24 +any"},
		{"a hole in a hole", "203.0.113.0/24", "0.0.0.0/0,203.0.113.8/29", "0.0.0.0/0 -any; 203.0.113.0/24 +any"},
		{"neighbours don't inherit", "203.0.112.0/24", "203.0.113.0/24", "203.0.112.0/24 +any; 203.0.113.0/24 -any"},
		{"ports of a shorter prefix", "203.0.0.0/16 tcp/443", "203.0.113.0/24", "203.0.0.0/16 +tcp443; 203.0.113.0/24 +tcp443 -any"},
		{"covered ports", "203.0.113.0/24 tcp/1-100,203.0.113.0/24 tcp/50", "", "203.0.113.0/24 +tcp1-100"},
		{"covering ports", "203.0.113.0/24 tcp/50,203.0.113.0/24 tcp", "", "203.0.113.0/24 +tcp"},
		{"ipv6 is left out", "2001:db8::/32", "::/0", ""},
		{"deny covering ports below", "203.0.113.7 udp/53", "203.0.113.0/24", "203.0.113.0/24 -any; 203.0.113.7/32 +udp53 -any"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Policy{Allow: rules(t, tt.allow), Deny: rules(t, tt.deny)}
			entries, err := p.entries()
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(entries); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func rules(tb testing.TB, list string) []Rule {
	tb.Helper()
	var out []Rule
	for s := range strings.SplitSeq(list, ",") {
		if s == "" {
			continue
		}
		r, err := parseRule(s)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func describe(entries []entry) string {
	var out []string
	for _, e := range entries {
		s := e.prefix.String()
		for _, r := range e.effect.allow {
			s += " +" + ruleText(r)
		}
		for _, r := range e.effect.deny {
			s += " -" + ruleText(r)
		}
		out = append(out, s)
	}
	return strings.Join(out, "; ")
}

func ruleText(r Rule) string {
	switch {
	case r.Ports.isAll():
		return r.Protocol.String()
	case r.Ports.Low == r.Ports.High:
		return fmt.Sprintf("%v%d", r.Protocol, r.Ports.Low)
	}
	return fmt.Sprintf("%v%d-%d", r.Protocol, r.Ports.Low, r.Ports.High)
}

// judge is the policy's meaning, spelled out: what the tries in the kernel must agree with.
func judge(p *Policy, dst netip.Addr, proto Protocol, port uint16) bool {
	hit := func(r Rule) bool {
		return r.Prefix.Contains(dst) && (r.Protocol == AnyProtocol || r.Protocol == proto) &&
			(r.Ports.isAll() || proto != ICMP && r.Ports.Low <= port && port <= r.Ports.High)
	}
	if slices.ContainsFunc(p.Allow, hit) {
		return true
	}
	return !slices.ContainsFunc(p.Deny, hit) && p.Internet
}

// TestKernelDecidesLikeThePolicy draws policies that overlap a lot and asks the program about their edges.
func TestKernelDecidesLikeThePolicy(t *testing.T) {
	b := newBench(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	asked := 0
	for range 60 {
		p := randomPolicy(rnd)
		if _, err := p.entries(); errors.Is(err, ErrTooManyRules) {
			continue
		}
		b.attach(t, p)
		for range 60 {
			dst, proto, port := randomPacket(rnd, p)
			verdict, _ := b.run(t, b.FromGuest, 0, probe(dst.String(), proto, port))
			if got, want := verdict == next, judge(p, dst, proto, port); got != want {
				t.Fatalf("%v %v port %d passed: %v, want %v, under\nallow %v\ndeny %v\ninternet %v", dst, proto, port, got, want, p.Allow, p.Deny, p.Internet)
			}
			asked++
		}
	}
	t.Logf("%d packets", asked)
}

// randomPolicy stays in 203.0.0.0/16, so that rules meet.
func randomPolicy(rnd *rand.Rand) *Policy {
	draw := func() []Rule {
		out := make([]Rule, rnd.IntN(12))
		for i := range out {
			addr := netip.AddrFrom4([4]byte{203, 0, byte(rnd.IntN(4)), byte(rnd.IntN(256))})
			out[i] = Rule{Prefix: netip.PrefixFrom(addr, []int{0, 14, 16, 22, 24, 28, 31, 32}[rnd.IntN(8)]).Masked()}
			out[i].Protocol = []Protocol{AnyProtocol, AnyProtocol, TCP, UDP, ICMP}[rnd.IntN(5)]
			if (out[i].Protocol == TCP || out[i].Protocol == UDP) && rnd.IntN(2) == 0 {
				low := uint16(1 + rnd.IntN(20))
				out[i].Ports = Ports{low, low + uint16(rnd.IntN(5))}
			}
		}
		return out
	}
	return &Policy{Internet: rnd.IntN(2) == 0, Allow: draw(), Deny: draw()}
}

// randomPacket goes to the first, the last or the next address of a rule, or anywhere.
func randomPacket(rnd *rand.Rand, p *Policy) (netip.Addr, Protocol, uint16) {
	dst := netip.AddrFrom4([4]byte{203, 0, byte(rnd.IntN(4)), byte(rnd.IntN(256))})
	if all := slices.Concat(p.Allow, p.Deny); len(all) > 0 && rnd.IntN(3) > 0 {
		prefix := all[rnd.IntN(len(all))].Prefix
		if prefix.Bits() > 0 {
			dst = []netip.Addr{prefix.Addr(), lastOf(prefix), lastOf(prefix).Next()}[rnd.IntN(3)]
		}
	}
	return dst, []Protocol{TCP, UDP, ICMP}[rnd.IntN(3)], uint16(1 + rnd.IntN(25))
}

func probe(dst string, proto Protocol, port uint16) []byte {
	var l4 []byte
	switch proto {
	case TCP:
		l4 = tcp(guest, dst, 40000, port, 2, nil)
	case UDP:
		l4 = udp(guest, dst, 40000, port, nil)
	case ICMP:
		l4 = icmp(8, 0, 1, nil)
	}
	return fromGuest(ip4(header{src: guest, dst: dst, protocol: proto}, l4))
}

func TestLaterFragmentsFollowTheirProtocolsRules(t *testing.T) {
	b := newBench(t)
	b.attach(t, &Policy{Allow: rules(t, "203.0.113.0/28 udp/53,203.0.113.16/28 tcp"), Deny: rules(t, "198.51.100.0/24 udp/53")})
	later := func(dst string, p Protocol) []byte {
		return fromGuest(ip4(header{src: guest, dst: dst, protocol: p, frag: 100}, make([]byte, 16)))
	}
	passed := func(name, dst string, p Protocol) packetCase {
		return pass(name, later(dst, p), fromGuest(ip4(header{src: hostSide, dst: dst, protocol: p, frag: 100}, make([]byte, 16))))
	}
	b.check(t, b.FromGuest, 0, []packetCase{
		passed("of an allowed port", "203.0.113.1", UDP),
		refuse("of another protocol", DropPolicy, later("203.0.113.1", TCP)),
		passed("of an allowed protocol", "203.0.113.17", TCP),
		refuse("to nowhere", DropPolicy, later("203.0.113.40", UDP)),
	})
	b.attach(t, &Policy{Internet: true, Deny: rules(t, "198.51.100.0/25 udp/53,198.51.100.128/25 udp")})
	b.check(t, b.FromGuest, 0, []packetCase{
		passed("beside a denied port", "198.51.100.1", UDP),
		refuse("of a denied protocol", DropPolicy, later("198.51.100.200", UDP)),
	})
}

func TestPinnedAddresses(t *testing.T) {
	b := newBench(t)
	b.attach(t, &Policy{Names: []string{"example.org"}})
	at := networkOrder(netip.MustParseAddr(world))
	put := func(epoch uint32, until uint64) {
		if err := b.Pins.Put(tapPin{Epoch: epoch, Addr: at}, until); err != nil {
			t.Fatal(err)
		}
	}
	out := fromGuest(ip4(header{src: hostSide, dst: world, protocol: TCP}, tcp(hostSide, world, 40000, 443, 2, nil)))
	b.check(t, b.FromGuest, 0, []packetCase{refuse("never learned", DropPolicy, probe(world, TCP, 443))})
	put(6, ^uint64(0))
	b.check(t, b.FromGuest, 0, []packetCase{refuse("learned by the sandbox before", DropPolicy, probe(world, TCP, 443))})
	put(7, 1)
	b.check(t, b.FromGuest, 0, []packetCase{refuse("learned too long ago", DropPolicy, probe(world, TCP, 443))})
	put(7, ^uint64(0))
	b.check(t, b.FromGuest, 0, []packetCase{pass("learned", probe(world, TCP, 443), out)})
	b.attach(t, &Policy{})
	b.check(t, b.FromGuest, 0, []packetCase{refuse("no longer a policy with names", DropPolicy, probe(world, TCP, 443))})
}
