//go:build !e2e

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cella.dev/cella/netvs"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/node/worker"
)

// TestMain runs the tests in namespaces of their own. They need root.
func TestMain(m *testing.M) {
	if err := testnet.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if run := os.Getenv(crashRun); run != "" {
		fmt.Fprintln(os.Stderr, crash(run)) // comes back only on an error
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// crashRun names the run directory of a process that is to die with a network and a sandbox in it.
const crashRun = "CELLA_NODE_CRASH"

func crash(run string) error {
	opts := options(run)
	opts.Network = NetworkOn
	n := &Node{opts: opts, log: opts.Logger}
	if err := n.setUpNetwork(); err != nil {
		return err
	}
	if _, err := n.connect(&sandbox{Sandbox: Sandbox{ID: "a"}}, &template{Template: Template{Card: &worker.Card{}}}); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// traces lists what a network leaves on a host: devices, addresses and mounts.
func traces(t *testing.T) []string {
	t.Helper()
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(d.Name, addrs))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, strings.Split(string(mounts), "\n")...)
	slices.Sort(all)
	return all
}

func options(run string) Options {
	return Options{Run: run, Resolvers: []string{"192.0.2.53:53"}, Logger: slog.New(slog.DiscardHandler), Egress: netvs.Config{Pool: 1}}
}

func TestNetworkIsTakenAndGivenBack(t *testing.T) {
	before, opts := traces(t), options(t.TempDir())
	for range 2 {
		n, err := openNetwork(opts)
		if err != nil {
			t.Fatal(err)
		}
		other := options(t.TempDir())
		want := "another cella on this host has the sandboxes' network: stop it, or go without"
		if _, err := openNetwork(other); err == nil || err.Error() != want {
			t.Errorf("a second one: %v, want %q", err, want)
		}
		if err := n.close(); err != nil {
			t.Fatal(err)
		}
		if after := traces(t); !slices.Equal(after, before) {
			t.Errorf("before %q, after %q", before, after)
		}
		if _, err := os.Stat(filepath.Join(opts.Run, "bpf")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory of pins: %v", err)
		}
	}
}

func TestNetworkOfACrashedProcessIsCleanedUp(t *testing.T) {
	before, run := traces(t), t.TempDir()
	for _, next := range []string{run, t.TempDir()} { // the same directory, or another one
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), crashRun+"="+run)
		out, err := cmd.CombinedOutput()
		if err == nil || err.Error() != "signal: killed" {
			t.Fatalf("the crashing process: %v: %s", err, out)
		}
		if len(traces(t)) < len(before)+2 {
			t.Fatal("the crashed process left nothing")
		}
		n, err := openNetwork(options(next))
		if err != nil {
			t.Fatal(err)
		}
		c, err := n.Census()
		if err != nil || c.Used != 0 || c.Entries > 1 {
			t.Errorf("census %+v, %v", c, err)
		}
		if err := n.close(); err != nil {
			t.Fatal(err)
		}
		if next != run { // its pins have no other user than who knows the directory
			if err := unix.Unmount(filepath.Join(run, "bpf"), 0); err != nil {
				t.Error(err)
			}
		}
		if after := traces(t); !slices.Equal(after, before) {
			t.Errorf("before %q, after %q", before, after)
		}
	}
}

func TestNodesConnectWhatTheyCan(t *testing.T) {
	opts := options(t.TempDir())
	card, plain := &template{}, &template{}
	card.Card = &worker.Card{MAC: netvs.GuestMAC.String(), MTU: guestMTU}
	asks := NetworkPolicy{AllowOut: []string{"192.0.2.1"}}
	for _, tc := range []struct {
		mode    NetworkMode
		ranges  string
		fails   string
		connect bool
	}{
		{NetworkOff, "10.77.0.0/16", "", false},
		{NetworkAuto, "127.0.0.0/16", "", false},
		{NetworkOn, "127.0.0.0/16", "overlaps", false},
		{NetworkOn, "10.77.0.0/16", "", true},
		{NetworkAuto, "10.77.0.0/16", "", true},
	} {
		opts.Network, opts.Egress.Range = tc.mode, netip.MustParsePrefix(tc.ranges)
		n := &Node{opts: opts, log: opts.Logger}
		err := n.setUpNetwork()
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%+v: %v", tc, err)
		}
		if got := n.checkNetwork(card, asks); (got == nil) != tc.connect || got != nil && !errors.Is(got, ErrNoNetwork) {
			t.Errorf("%+v: asked for access: %v", tc, got)
		}
		if got := n.checkNetwork(plain, asks); !errors.Is(got, ErrNoNetwork) {
			t.Errorf("%+v: asked for access without a card: %v", tc, got)
		}
		if err := n.checkNetwork(plain, NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}}); err != nil {
			t.Errorf("%+v: asked for nothing: %v", tc, err)
		}
		for _, tmpl := range []*template{card, plain} {
			s := &sandbox{Sandbox: Sandbox{ID: "a"}}
			got, err := n.connect(s, tmpl)
			if err != nil || got.Card != tmpl.Card || (got.Tap != nil) != (tc.connect && tmpl == card) {
				t.Errorf("%+v: connected as %+v, %v", tc, got, err)
			}
			n.disconnect(s)
		}
		if n.network != nil {
			if err := n.network.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPoliciesAreCheckedWhole(t *testing.T) {
	for _, tc := range []struct {
		p    NetworkPolicy
		want string
	}{
		{NetworkPolicy{DenyOut: []string{"0.0.0.0/0", "a.test"}}, `network policy: denyOut[1] "a.test": is a name; only addresses can be denied`},
		{NetworkPolicy{AllowOut: []string{"a.test"}}, `network policy: allowOut[0] "a.test": a name restricts nothing unless denyOut has "0.0.0.0/0"`},
	} {
		if _, err := parsePolicy(nil, tc.p); !errors.Is(err, ErrPolicy) || err.Error() != tc.want {
			t.Errorf("%+v: %v, want %q", tc.p, err, tc.want)
		}
	}
	off := false
	if p, err := parsePolicy(&off, NetworkPolicy{AllowOut: []string{"a.test"}}); err != nil || p.Internet || len(p.Names) != 1 {
		t.Errorf("internet off and a name: %+v, %v", p, err)
	}
}
