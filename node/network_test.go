//go:build !e2e

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	os.Exit(m.Run())
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

func options(t *testing.T) Options {
	return Options{Run: t.TempDir(), Resolvers: []string{"192.0.2.53:53"}, Logger: slog.New(slog.DiscardHandler), Egress: netvs.Config{Pool: 1}}
}

func TestNetworkIsTakenAndGivenBack(t *testing.T) {
	before, opts := traces(t), options(t)
	for range 2 {
		n, err := openNetwork(opts)
		if err != nil {
			t.Fatal(err)
		}
		other := options(t)
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

func TestNodesConnectWhatTheyCan(t *testing.T) {
	opts := options(t)
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
