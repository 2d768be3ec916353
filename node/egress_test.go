//go:build !e2e

package node

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"cella.dev/cella/netvs"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/node/worker"
)

// TestEgressOfASandbox drives a sandbox's tap as its guest would, from a namespace in place of a virtual machine.
func TestEgressOfASandbox(t *testing.T) {
	world, err := testnet.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	defer testnet.CloseWorld(world)
	l, err := world.Listen(testnet.World + ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	questions := serveNames(t, world)

	opts := options(t.TempDir())
	opts.Network, opts.Resolvers = NetworkOn, []string{testnet.World + ":53"}
	n := &Node{opts: opts, log: opts.Logger, sandboxes: make(map[string]*sandbox)}
	if err := n.setUpNetwork(); err != nil {
		t.Fatal(err)
	}
	defer n.network.close()
	s := &sandbox{Sandbox: Sandbox{ID: "a"}}
	connection, err := n.connect(s, &template{Template: Template{Card: &worker.Card{}}})
	if err != nil {
		t.Fatal(err)
	}
	n.sandboxes[s.ID] = s
	guest, err := testnet.NewGuest(connection.Tap, testnet.Address{MAC: netvs.GuestMAC, Addr: netvs.GuestAddr, Gateway: netvs.GatewayAddr})
	if err != nil {
		t.Fatal(err)
	}
	defer n.disconnect(s)
	defer guest.Close()

	yes, no := true, false
	for _, tc := range []struct {
		name     string
		before   func() error
		question string
		rcode    int
		reaches  bool
	}{
		{"nobody's yet", nil, "a.test.", dns.RcodeRefused, false},
		{"everything", func() error { return n.SetNetwork("a", nil, NetworkPolicy{}) }, "b.test.", dns.RcodeSuccess, true},
		{"internet off", func() error { return n.SetNetwork("a", &no, NetworkPolicy{}) }, "secret.attacker.test.", dns.RcodeRefused, false},
		{"another name only", func() error {
			return n.SetNetwork("a", &yes, NetworkPolicy{AllowOut: []string{"allowed.test"}, DenyOut: []string{"0.0.0.0/0"}})
		}, "denied.test.", dns.RcodeRefused, false},
		{"the name", nil, "allowed.test.", dns.RcodeSuccess, true},
		{"a malformed policy changes nothing", func() error {
			if err := n.SetNetwork("a", nil, NetworkPolicy{AllowOut: []string{"300.1.1.1"}}); !errors.Is(err, ErrPolicy) {
				return errors.Join(errors.New("it was taken"), err)
			}
			return nil
		}, "denied.test.", dns.RcodeRefused, true},
		{"the address is denied", func() error { return n.SetNetwork("a", nil, NetworkPolicy{DenyOut: []string{testnet.World}}) }, "c.test.", dns.RcodeSuccess, false},
	} {
		if tc.before != nil {
			if err := tc.before(); err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
		}
		if got := ask(t, guest, tc.question); got != tc.rcode {
			t.Errorf("%s: %s: %s, want %s", tc.name, tc.question, dns.RcodeToString[got], dns.RcodeToString[tc.rcode])
		}
		if got := reaches(guest, testnet.World+":80"); got != tc.reaches {
			t.Errorf("%s: reaches the world %t, want %t", tc.name, got, tc.reaches)
		}
	}
	for _, name := range questions() {
		if name != "b.test." && name != "allowed.test." && name != "c.test." {
			t.Errorf("the question for %s left the host", name)
		}
	}
	if err := n.SetNetwork("b", nil, NetworkPolicy{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a sandbox that is not there: %v", err)
	}
}

// serveNames gives every name the world's address, and returns what was asked.
func serveNames(t *testing.T, world *testnet.Namespace) (questions func() []string) {
	t.Helper()
	c, err := world.ListenPacket("udp4", testnet.World+":53")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 100)
	server := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- q.Question[0].Name
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(testnet.World)}}
		w.WriteMsg(m)
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { c.Close() })
	return func() (all []string) {
		for len(asked) > 0 {
			all = append(all, <-asked)
		}
		return all
	}
}

func ask(t *testing.T, guest *testnet.Guest, name string) int {
	t.Helper()
	c, err := guest.Dial("udp4", netvs.GatewayAddr.String()+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn := &dns.Conn{Conn: c}
	if err := conn.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	reply, err := conn.ReadMsg()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return reply.Rcode
}

// reaches tries for half a second: what is denied is dropped, and nothing tells.
func reaches(guest *testnet.Guest, addr string) bool {
	ok := false
	guest.Do(func() error {
		c, err := net.DialTimeout("tcp4", addr, 500*time.Millisecond)
		if ok = err == nil; ok {
			c.Close()
		}
		return err
	})
	return ok
}
