package netvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestMayResolve(t *testing.T) {
	all := []Rule{{Prefix: everything}}
	listed := &Policy{Internet: true, Deny: all, Names: []string{"example.org", "*.example.com"}}
	tests := []struct {
		name   string
		policy *Policy
		ask    string
		want   bool
	}{
		{"internet on", &Policy{Internet: true}, "anything.test", true},
		{"internet off", &Policy{}, "secret.attacker.test", false},
		{"everything denied", &Policy{Internet: true, Deny: all}, "secret.attacker.test", false},
		{"only addresses allowed", &Policy{Allow: rules(t, "203.0.113.0/24")}, "secret.attacker.test", false},
		{"some addresses denied", &Policy{Internet: true, Deny: rules(t, "203.0.113.0/24")}, "anything.test", true},
		{"some ports denied everywhere", &Policy{Internet: true, Deny: rules(t, "0.0.0.0/0 tcp/25")}, "anything.test", true},
		{"listed", listed, "example.org", true},
		{"listed, in capitals", listed, "EXAMPLE.Org", true},
		{"below a listed one", listed, "a.example.org", false},
		{"ends like a listed one", listed, "badexample.org", false},
		{"wildcard", listed, "a.example.com", true},
		{"two below a wildcard", listed, "a.b.example.com", true},
		{"the wildcard's own name", listed, "example.com", false},
		{"ends like a wildcard", listed, "badexample.com", false},
		{"an escaped dot", listed, `bad\.example.com`, false},
		{"an escaped byte", listed, `\200.example.com`, false},
		{"root", listed, "", false},
		{"names with the internet off", &Policy{Names: []string{"example.org"}}, "example.org", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.MayResolve(tt.ask); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// zone is what the tests' upstream knows; it refuses to be asked for anything else.
type zone struct {
	mu    sync.Mutex
	rrs   map[string][]string // "name type" → records
	asked []string
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	key := q.Question[0].Name + " " + dns.TypeToString[q.Question[0].Qtype]
	z.asked = append(z.asked, key)
	m := new(dns.Msg).SetReply(q)
	list, ok := z.rrs[key]
	if !ok {
		m.Rcode = dns.RcodeNameError
		m.Ns = append(m.Ns, record("test. 60 IN SOA ns.test. root.test. 1 2 3 4 60"))
	}
	for _, s := range list {
		if extra, ok := strings.CutPrefix(s, "+"); ok {
			m.Extra = append(m.Extra, record(extra))
			continue
		}
		m.Answer = append(m.Answer, record(s))
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		m.Truncate(dns.MinMsgSize)
	}
	w.WriteMsg(m)
}

func record(s string) dns.RR {
	rr, err := dns.NewRR(s)
	if err != nil {
		panic(err)
	}
	return rr
}

func thirty(name string) []string {
	var out []string
	for i := range 30 {
		out = append(out, fmt.Sprintf("%s 0 IN A 198.51.100.%d", name, i+1))
	}
	return out
}

// newZone serves a zone in the world.
func newZone(tb testing.TB, w namespace) (*zone, string) {
	tb.Helper()
	z := &zone{rrs: map[string][]string{
		"a.example.test. A":     {"a.example.test. 30 IN A " + world2},
		"other.test. A":         {"other.test. 30 IN A " + world},
		"chain.example.test. A": {"chain.example.test. 0 IN CNAME one.cdn.test.", "one.cdn.test. 0 IN CNAME two.cdn.test.", "two.cdn.test. 0 IN A " + world2},
		"loop.example.test. A":  {"loop.example.test. 0 IN CNAME loop2.test.", "loop2.test. 0 IN CNAME loop.example.test."},
		"many.example.test. A":  thirty("many.example.test."),
		"liar.example.test. A": {"liar.example.test. 30 IN A 198.51.100.77", "unasked.test. 30 IN A 203.0.113.66",
			"+extra.test. 30 IN A 203.0.113.67"},
		"inside.example.test. A": {"inside.example.test. 30 IN A 10.1.2.3"},
		"a.example.test. TXT":    {`a.example.test. 30 IN TXT "text"`},
	}}
	var pc net.PacketConn
	var l net.Listener
	w.do(tb, func() (err error) {
		if pc, err = net.ListenPacket("udp4", world+":53"); err != nil {
			return err
		}
		l, err = net.Listen("tcp4", world+":53")
		return err
	})
	var running sync.WaitGroup
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: z}, {Listener: l, Handler: z}} {
		running.Go(func() { s.ActivateAndServe() })
	}
	tb.Cleanup(func() { pc.Close(); l.Close(); running.Wait() })
	return z, world + ":53"
}

// refusals collects the names that were refused.
type refusals struct {
	mu    sync.Mutex
	names []string
}

// newResolver serves names to the network's sandboxes.
func newResolver(tb testing.TB, n *Network, upstream ...string) *refusals {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var refused refusals
	r := &Resolver{Network: n, Upstream: upstream, Refused: func(s, name string) {
		refused.mu.Lock()
		defer refused.mu.Unlock()
		refused.names = append(refused.names, s+" "+name)
	}}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return &refused
}

// lookup asks the gateway, as the guest's libc would, until somebody listens there.
func (g *fakeGuest) lookup(tb testing.TB, network, name string, qtype uint16) *dns.Msg {
	tb.Helper()
	deadline := time.Now().Add(limit)
	for {
		c, err := g.dial(network, gateway+":53")
		var reply *dns.Msg
		if err == nil {
			q := new(dns.Msg).SetQuestion(name, qtype)
			reply, _, err = (&dns.Client{Net: network, Timeout: limit}).ExchangeWithConn(q, &dns.Conn{Conn: c})
			c.Close()
		}
		if err == nil {
			return reply
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
			tb.Fatal(err)
		}
	}
}

func addrsOf(m *dns.Msg) string {
	var out []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			out = append(out, a.A.String())
		}
	}
	return strings.Join(out, " ")
}

func TestNamesAreResolvedAndPinned(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	z, upstream := newZone(t, w)
	refused := newResolver(t, n, upstream)
	g := attachGuest(t, n, "a", &Policy{Internet: true, Deny: []Rule{{Prefix: everything}}, Names: []string{"*.example.test"}})
	other := attachGuest(t, n, "b", &Policy{Names: []string{"*.example.test"}})
	w.listenUDP(t, world2+":7000", whoami)

	u := g.mustDial(t, "udp4", world2+":7000")
	u.Write([]byte("not yet"))
	await(t, events, DropPolicy)
	if got := addrsOf(g.lookup(t, "udp4", "a.example.test.", dns.TypeA)); got != world2 {
		t.Fatalf("a.example.test is %q", got)
	}
	if got := ask(t, u, "now"); got != uplink {
		t.Errorf("the world saw %s", got)
	}
	other.mustDial(t, "udp4", world2+":7000").Write([]byte("I never asked"))
	if d := await(t, events, DropPolicy); d.Sandbox != "b" {
		t.Errorf("denied %+v", d)
	}
	// Claiming the name elsewhere is of no use: only learned addresses are reached.
	g.mustDial(t, "udp4", world+":443").Write([]byte("a.example.test, honestly"))
	if d := await(t, events, DropPolicy); d.Sandbox != "a" || d.To.String() != world+":443" {
		t.Errorf("denied %+v", d)
	}

	if m := g.lookup(t, "udp4", "other.test.", dns.TypeA); m.Rcode != dns.RcodeRefused {
		t.Errorf("other.test: %v", m)
	}
	refused.mu.Lock()
	if got := strings.Join(refused.names, ", "); got != "a other.test" {
		t.Errorf("refused %q", got)
	}
	refused.mu.Unlock()
	z.mu.Lock()
	if got := strings.Join(z.asked, ", "); got != "a.example.test. A" {
		t.Errorf("upstream was asked %q", got)
	}
	z.mu.Unlock()

	// A policy that no longer has the name takes its addresses away, but not those of names it still has.
	if err := g.SetPolicy(&Policy{Names: []string{"a.example.test"}}); err != nil {
		t.Fatal(err)
	}
	ask(t, u, "still")
	if err := g.SetPolicy(&Policy{Names: []string{"b.example.test"}}); err != nil {
		t.Fatal(err)
	}
	u.Write([]byte("gone"))
	await(t, events, DropPolicy)
	if k := countPins(t, n); k != 0 {
		t.Errorf("%d addresses are still pinned", k)
	}
}

func countPins(tb testing.TB, n *Network) (k int) {
	tb.Helper()
	var key tapPin
	var until uint64
	it := n.objects.Pins.Iterate()
	for it.Next(&key, &until) {
		k++
	}
	if err := it.Err(); err != nil {
		tb.Fatal(err)
	}
	return k
}

func TestAnswers(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	_, upstream := newZone(t, w)
	newResolver(t, n, world+":1", upstream) // the first one is dead
	g := attachGuest(t, n, "a", &Policy{Names: []string{"*.example.test"}})
	tests := []struct {
		name    string
		network string
		ask     string
		qtype   uint16
		rcode   int
		addrs   string
		answers int
	}{
		{"address", "udp4", "a.example.test.", dns.TypeA, dns.RcodeSuccess, world2, 1},
		{"over tcp", "tcp4", "a.example.test.", dns.TypeA, dns.RcodeSuccess, world2, 1},
		{"mixed case", "udp4", "A.exAMple.test.", dns.TypeA, dns.RcodeNameError, "", 0}, // the zone of the test knows lower case only
		{"chain", "udp4", "chain.example.test.", dns.TypeA, dns.RcodeSuccess, world2, 3},
		{"loop of aliases", "udp4", "loop.example.test.", dns.TypeA, dns.RcodeSuccess, "", 3},
		{"thirty over tcp", "tcp4", "many.example.test.", dns.TypeA, dns.RcodeSuccess, strings.Join(hosts(30), " "), 30},
		{"what was not asked for stays out", "udp4", "liar.example.test.", dns.TypeA, dns.RcodeSuccess, "198.51.100.77", 1},
		{"text", "udp4", "a.example.test.", dns.TypeTXT, dns.RcodeSuccess, "", 1},
		{"no ipv6", "udp4", "a.example.test.", dns.TypeAAAA, dns.RcodeSuccess, "", 0},
		{"no service bindings", "udp4", "a.example.test.", dns.TypeHTTPS, dns.RcodeSuccess, "", 0},
		{"unknown name", "udp4", "none.example.test.", dns.TypeA, dns.RcodeNameError, "", 0},
		{"another name", "udp4", "secret.attacker.test.", dns.TypeA, dns.RcodeRefused, "", 0},
		{"any", "udp4", "a.example.test.", dns.TypeANY, dns.RcodeRefused, "", 0},
		{"zone transfer", "tcp4", "a.example.test.", dns.TypeIXFR, dns.RcodeRefused, "", 0},
		{"tunnel", "udp4", strings.Repeat("x", 60) + ".attacker.test.", dns.TypeNULL, dns.RcodeRefused, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := g.lookup(t, tt.network, tt.ask, tt.qtype)
			if m.Rcode != tt.rcode || addrsOf(m) != tt.addrs || len(m.Answer) != tt.answers || len(m.Extra) != 0 {
				t.Errorf("got %v", m)
			}
		})
	}
	m := g.lookup(t, "udp4", "many.example.test.", dns.TypeA)
	m.Compress = true // as it came
	if !m.Truncated || m.Len() > dns.MinMsgSize {
		t.Errorf("thirty addresses over UDP without EDNS: truncated %v, %d bytes", m.Truncated, m.Len())
	}
	if k := countPins(t, n); k != 31 { // world2 is .20, one of the thirty; and .77
		t.Errorf("%d addresses are pinned, want 31", k)
	}
	st, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st.NamesRefused != 4 || st.NamesAnswered == 0 {
		t.Errorf("%d names refused, %d answered", st.NamesRefused, st.NamesAnswered)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if k := countPins(t, n); k != 0 {
		t.Errorf("%d addresses are pinned to nobody", k)
	}
}

func hosts(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("198.51.100.%d", i+1))
	}
	return out
}

func TestNoNameResolvesWithTheInternetOff(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	z, upstream := newZone(t, w)
	newResolver(t, n, upstream)
	g := attachGuest(t, n, "a", &Policy{})
	if m := g.lookup(t, "udp4", "secret.attacker.test.", dns.TypeA); m.Rcode != dns.RcodeRefused {
		t.Errorf("got %v", m)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.asked) != 0 {
		t.Errorf("upstream was asked %q", z.asked)
	}
}

func TestAnAllowedNameOpensNoBlockedRange(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	_, upstream := newZone(t, w)
	newResolver(t, n, upstream)
	g := attachGuest(t, n, "a", &Policy{Names: []string{"inside.example.test"}})
	g.lookup(t, "udp4", "inside.example.test.", dns.TypeA)
	g.mustDial(t, "udp4", "10.1.2.3:80").Write([]byte("rebound"))
	await(t, events, DropBlocked)
}

// TestUseKeepsAPin: packets to a learned address put its end off.
func TestUseKeepsAPin(t *testing.T) {
	b := newBench(t)
	b.attach(t, &Policy{Names: []string{"example.org"}})
	key := tapPin{Epoch: 7, Addr: networkOrder(netip.MustParseAddr(world))}
	soon := uint64(sinceBoot() + 5*time.Second)
	if err := b.Pins.Put(key, soon); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := b.run(t, b.FromGuest, 0, probe(world, TCP, 443)); verdict != next {
		t.Fatalf("verdict %d", int32(verdict))
	}
	var until uint64
	if err := b.Pins.Lookup(key, &until); err != nil {
		t.Fatal(err)
	}
	if left := time.Duration(until) - sinceBoot(); left < 100*time.Second || left > 120*time.Second {
		t.Errorf("it ends in %v", left)
	}
}
