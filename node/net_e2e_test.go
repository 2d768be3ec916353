//go:build e2e

package node_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"cella.dev/cella/internal/agentrpc"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/node"
)

// world is what sandboxes reach beyond the host: a namespace with HTTP and names.
type world struct {
	*testnet.Namespace
	mu    sync.Mutex
	asked []string // names, in the order in which they were asked for
}

// privateAddr is where the world serves although nobody may go there.
const privateAddr = "192.168.7.1"

func newWorld(t *testing.T) *world {
	t.Helper()
	ns, err := testnet.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Namespace: ns}
	t.Cleanup(func() {
		if err := testnet.CloseWorld(ns); err != nil {
			t.Error(err)
		}
	})
	if err := ns.Do(func() error { return testnet.AddAddr("lo", privateAddr+"/32") }); err != nil {
		t.Fatal(err)
	}
	l, err := ns.Listen("0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	serveHTTP(t, l)
	c, err := ns.ListenPacket("udp4", testnet.World+":53")
	if err != nil {
		t.Fatal(err)
	}
	names := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(w.answer)}
	go names.ActivateAndServe()
	t.Cleanup(func() { c.Close() })
	return w
}

// serveHTTP answers with "hello", and with the length and hash of what was posted.
func serveHTTP(t *testing.T, l net.Listener) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	mux.HandleFunc("GET /zeros", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 2<<20)) })
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, h.Sum(nil), err)
	})
	s := &http.Server{Handler: mux}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
}

// answer knows that every name has the world's address.
func (w *world) answer(rw dns.ResponseWriter, q *dns.Msg) {
	name := q.Question[0].Name
	w.mu.Lock()
	w.asked = append(w.asked, name)
	w.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeA {
		rr, err := dns.NewRR(name + " 0 IN A " + testnet.World)
		if err == nil {
			m.Answer = append(m.Answer, rr)
		}
	}
	rw.WriteMsg(m)
}

func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.asked...)
}

// connected opens a node with a network.
func connected(t *testing.T) *node.Node {
	t.Helper()
	return open(t, node.Options{Network: node.NetworkOn, Resolvers: []string{testnet.World + ":53"}})
}

var off = false

// fetch gets a URL from inside, within two seconds.
func fetch(t *testing.T, n *node.Node, s node.Sandbox, url string) (string, bool) {
	t.Helper()
	r := run(t, n, s, agentrpc.Shell("curl -sS --max-time 2 "+url))
	if r.code != 0 {
		return r.stderr, false
	}
	return r.stdout, true
}

// answering asks addresses over HTTP, all at once, and returns those that answer.
func answering(t *testing.T, n *node.Node, s node.Sandbox, addrs ...string) []string {
	t.Helper()
	return strings.Fields(sh(t, n, s, "for a in "+strings.Join(addrs, " ")+"; do curl -s -o /dev/null --max-time 2 http://$a/ && echo $a & done; wait"))
}

// made creates a sandbox when it is first asked for.
func made(t *testing.T, n *node.Node, req node.CreateRequest) func() node.Sandbox {
	return sync.OnceValue(func() node.Sandbox { return create(t, n, req) })
}

func TestNetworkOfASandbox(t *testing.T) {
	w := newWorld(t)
	n := connected(t)
	open := made(t, n, node.CreateRequest{})
	closed := made(t, n, node.CreateRequest{AllowInternet: &off})
	named := made(t, n, node.CreateRequest{Network: node.NetworkPolicy{
		AllowOut: []string{"allowed.test", "*.wild.test"}, DenyOut: []string{"0.0.0.0/0"}}})

	t.Run("configured inside", func(t *testing.T) {
		got := sh(t, n, open(), "ip -4 -o addr show eth0 | awk '{print $4}'; ip route show default; cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu /etc/resolv.conf")
		want := "169.254.0.21/30\ndefault via 169.254.0.22 dev eth0 \n02:ce:11:a0:00:15\n1500\nnameserver 169.254.0.22"
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("reaches the world", func(t *testing.T) {
		if got, ok := fetch(t, n, open(), "http://"+testnet.World+"/"); !ok || got != "hello" {
			t.Errorf("%q, %t", got, ok)
		}
	})
	t.Run("much data both ways", func(t *testing.T) {
		want := fmt.Sprintf("%d %x <nil>", 2<<20, sha256.Sum256(make([]byte, 2<<20)))
		if got := sh(t, n, open(), "head -c 2097152 /dev/zero | curl -sS --max-time 60 --data-binary @- http://"+testnet.World+"/"); got != want {
			t.Errorf("upload: %q, want %q", got, want)
		}
		want = fmt.Sprintf("%x  -", sha256.Sum256(make([]byte, 2<<20)))
		if got := sh(t, n, open(), "curl -sS --max-time 60 http://"+testnet.World+"/zeros | sha256sum"); got != want {
			t.Errorf("download: %q, want %q", got, want)
		}
	})
	t.Run("internet off", func(t *testing.T) {
		if got, ok := fetch(t, n, closed(), "http://"+testnet.World+"/"); ok {
			t.Errorf("reached the world: %q", got)
		}
	})
	t.Run("private ranges and the host", func(t *testing.T) {
		host, err := net.Listen("tcp4", "0.0.0.0:8080")
		if err != nil {
			t.Fatal(err)
		}
		serveHTTP(t, host)
		for _, url := range answering(t, n, open(), privateAddr, testnet.Uplink+":8080", "10.77.0.1:8080", "169.254.0.22:8080",
			"127.0.0.1:8080", "169.254.169.254:8080") {
			t.Errorf("%s answers", url)
		}
	})
	t.Run("another sandbox", func(t *testing.T) {
		listening := closed()
		sh(t, n, listening, "mkdir -p /tmp/w && cd /tmp/w && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &); for i in $(seq 100); do curl -s 127.0.0.1:8000 >/dev/null && exit; sleep 0.1; done; exit 1")
		var all []string
		for slot := range 8 { // one of these is it
			all = append(all, fmt.Sprintf("10.77.0.%d:8000", slot+2))
		}
		for _, url := range answering(t, n, open(), all...) {
			t.Errorf("%s answers", url)
		}
	})
	t.Run("spoofed source", func(t *testing.T) {
		c, err := w.ListenPacket("udp4", testnet.World+":9000")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		script := `import socket
for source in ("203.0.113.9", "10.77.0.9", "169.254.0.21"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((source, 0))
    s.sendto(source.encode(), ("` + testnet.World + `", 9000))
`
		sh(t, n, open(), "sudo ip addr add 203.0.113.9/32 dev lo; sudo ip addr add 10.77.0.9/32 dev lo; python3 -c '"+script+"'")
		c.SetReadDeadline(time.Now().Add(testnet.Limit))
		buf := make([]byte, 100)
		k, from, err := c.ReadFrom(buf)
		if err != nil || string(buf[:k]) != "169.254.0.21" || !strings.HasPrefix(from.String(), testnet.Uplink+":") {
			t.Errorf("%q from %v came first, %v", buf[:k], from, err)
		}
	})
	t.Run("names", func(t *testing.T) {
		for _, name := range []string{"allowed.test", "a.wild.test"} {
			if got, ok := fetch(t, n, named(), "http://"+name+"/"); !ok || got != "hello" {
				t.Errorf("%s: %q, %t", name, got, ok)
			}
		}
		// Refused at once: well before any resolver's timeout.
		for _, s := range []node.Sandbox{named(), closed()} {
			if got := sh(t, n, s, "timeout 2 getent ahostsv4 secret.attacker.test; echo $?"); got != "2" {
				t.Errorf("a denied name: status %s, want 2 for not found (124 for no answer)", got)
			}
		}
		for _, name := range w.names() {
			if strings.Contains(name, "attacker") {
				t.Errorf("%s left the host", name)
			}
		}
	})
	t.Run("replaced while it runs", func(t *testing.T) {
		yes := true
		if err := n.SetNetwork(closed().ID, &yes, node.NetworkPolicy{}); err != nil {
			t.Fatal(err)
		}
		if got, ok := fetch(t, n, closed(), "http://"+testnet.World+"/"); !ok || got != "hello" {
			t.Errorf("after it was allowed: %q, %t", got, ok)
		}
		if err := n.SetNetwork(closed().ID, nil, node.NetworkPolicy{DenyOut: []string{testnet.World + "/32"}}); err != nil {
			t.Fatal(err)
		}
		if got, ok := fetch(t, n, closed(), "http://"+testnet.World+"/"); ok {
			t.Errorf("after it was denied: %q", got)
		}
		if err := n.SetNetwork(closed().ID, nil, node.NetworkPolicy{AllowOut: []string{"300.1.1.1"}}); !errors.Is(err, node.ErrPolicy) {
			t.Errorf("a malformed policy: %v", err)
		}
		if got, _ := n.Get(closed().ID); len(got.Network.DenyOut) != 1 {
			t.Errorf("the policy is %+v", got.Network)
		}
	})
	t.Run("cold boot", func(t *testing.T) {
		s := create(t, n, node.CreateRequest{Cold: true})
		if got, ok := fetch(t, n, s, "http://"+testnet.World+"/"); !ok || got != "hello" {
			t.Errorf("%q, %t", got, ok)
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir("/sys/class/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			if strings.HasPrefix(e.Name(), "cella") {
				t.Errorf("tap %s is left", e.Name())
			}
		}
	})
}

func TestWithoutANetwork(t *testing.T) {
	n := open(t, node.Options{})
	_, err := n.Create(t.Context(), node.CreateRequest{Template: "base", Timeout: time.Minute,
		Network: node.NetworkPolicy{AllowOut: []string{"192.0.2.1"}}})
	if !errors.Is(err, node.ErrNoNetwork) || !errors.Is(n.NoNetwork(), node.ErrNoNetwork) {
		t.Errorf("create: %v", err)
	}
	_, err = n.Create(t.Context(), node.CreateRequest{Template: "base", Timeout: time.Minute,
		Network: node.NetworkPolicy{DenyOut: []string{"x.test"}}})
	if !errors.Is(err, node.ErrPolicy) {
		t.Errorf("create with a malformed policy: %v", err)
	}
	s := create(t, n, node.CreateRequest{Network: node.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}}})
	if got, ok := fetch(t, n, s, "http://192.0.2.1/"); ok {
		t.Errorf("reached something: %q", got)
	}
	if err := n.SetNetwork(s.ID, nil, node.NetworkPolicy{}); !errors.Is(err, node.ErrNoNetwork) {
		t.Errorf("SetNetwork: %v", err)
	}
}
