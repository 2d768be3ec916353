package netvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostState is everything the network may leave on a host.
func hostState(tb testing.TB, pins string) []string {
	tb.Helper()
	var out []string
	links, err := netlink.LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range links {
		out = append(out, "device "+l.Attrs().Name)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range routes {
		out = append(out, fmt.Sprintf("route %v", r.Dst))
	}
	conn, err := nftables.New()
	if err != nil {
		tb.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		tb.Fatal(err)
	}
	for _, t := range tables {
		out = append(out, "table "+t.Name)
	}
	files, err := os.ReadDir(pins)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "maps.debug" && f.Name() != "progs.debug" { // bpffs has them by itself
			out = append(out, "pin "+f.Name())
		}
	}
	slices.Sort(out)
	return out
}

func TestNothingIsLeft(t *testing.T) {
	newWorld(t)
	dir := t.TempDir()
	before := hostState(t, dir)
	n, err := Open(Config{PinDir: dir, Pool: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	var open *Sandbox
	for i := range 5 {
		s, err := n.Attach(fmt.Sprint(i), &Policy{Internet: true, Deny: rules(t, "198.51.100.0/24")})
		if err != nil {
			t.Fatal(err)
		}
		if open != nil {
			if err := open.Close(); err != nil {
				t.Fatal(err)
			}
		}
		open = s
	}
	c, err := n.Census()
	if err != nil {
		t.Fatal(err)
	}
	if c.Used != 1 {
		t.Errorf("census %+v", c)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if err := n.Remove(); err != nil {
		t.Fatal(err)
	}
	if after := hostState(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
	if _, err := n.Attach("late", &Policy{}); !errors.Is(err, ErrClosed) {
		t.Errorf("attached after closing: %v", err)
	}
}

// TestWithoutRulesNothingReachesAGuest: when somebody flushes the rules, the programs fail closed.
func TestWithoutRulesNothingReachesAGuest(t *testing.T) {
	w, n := newWorld(t), newNetwork(t)
	events := deniedOf(t, n)
	g := attachGuest(t, n, "a", &Policy{Internet: true})
	w.listenUDP(t, world+":7000", whoami)
	c := g.mustDial(t, "udp4", world+":7000")
	ask(t, c, "?")
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushChain(&nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamilyIPv4, Name: n.cfg.TapPrefix}, Name: "forward"})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if d := await(t, events, DropUnsolicited); d.From.Addr().String() != world {
		t.Errorf("denied %+v", d)
	}
	if err := installRules(n.cfg); err != nil {
		t.Fatal(err)
	}
	ask(t, g.mustDial(t, "udp4", world+":7000"), "?")
}

func TestRangeIsFull(t *testing.T) {
	n := newNetwork(t, func(c *Config) { c.Range = netip.MustParsePrefix("10.99.7.0/24") })
	if got := n.cfg.slots(); got != 253 {
		t.Fatalf("%d slots", got)
	}
	n.mu.Lock() // as if all others were in use
	n.free = n.free[:1]
	n.mu.Unlock()
	var err error
	for range 5 {
		if _, err = n.Attach("x", &Policy{}); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}
