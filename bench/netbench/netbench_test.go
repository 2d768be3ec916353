package netbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"cella.dev/cella/bench"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/reports"
)

func TestMain(m *testing.M) {
	if err := testnet.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestBothArmsDoTheSameWork runs the least there is of everything.
func TestBothArmsDoTheSameWork(t *testing.T) {
	least := &Network{Rules: []int{0, 1200}, Rounds: 1, Upload: 20 * time.Millisecond, Connects: 3, Pings: 5, Updates: 1}
	s := &bench.Session{Clock: reports.ClockHardware, Rand: rand.New(rand.NewPCG(1, 0)), Log: t.Logf, Progress: func(string, int, int) {}}
	got := make(map[string]int)
	for _, sc := range least.Run(context.Background(), s) {
		if sc.Partial != "" || sc.Failed() != 0 {
			t.Errorf("%s of %s: %s %v", sc.Name, sc.Params.Arm, sc.Partial, sc.Errors)
		}
		got[fmt.Sprintf("%s %s %d", sc.Params.Arm, sc.Name, sc.Params.Rules)] = sc.N
		if sc.Name == Throughput && sc.Values["bytes_per_s"] <= 0 {
			t.Errorf("%s moved nothing", sc.Params.Arm)
		}
	}
	for _, arm := range []string{"cella", "nftables"} {
		for _, rules := range least.Rules {
			for name, n := range map[string]int{Throughput: 1, Connect: 3, Latency: 5, PolicyUpdate: 1} {
				if key := fmt.Sprintf("%s %s %d", arm, name, rules); got[key] != n {
					t.Errorf("%s: n is %d, want %d", key, got[key], n)
				}
			}
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 {
		t.Errorf("%d devices are left, want lo alone", len(links))
	}
}

// TestThePeerDeniesTheSame: both arms refuse what the rules name, or the comparison would be of nothing.
func TestThePeerDeniesTheSame(t *testing.T) {
	w, err := testnet.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	defer testnet.CloseWorld(w)
	victim := denied(7)[6].Addr().Next().String()
	if err := w.Do(func() error { return testnet.AddAddr("lo", victim+"/32") }); err != nil {
		t.Fatal(err)
	}
	l, err := w.Listen(victim + ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, open := range []func() (arm, error){newCella, newPlain} {
		a, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if c, err := a.guest().Dial("tcp4", victim+":80"); err != nil {
			t.Errorf("%s, no rules: %v", a.name(), err)
		} else {
			c.Close()
		}
		if err := a.setRules(7); err != nil {
			t.Fatal(err)
		}
		var c net.Conn
		err = a.guest().Do(func() (err error) {
			c, err = dialBriefly(victim + ":80")
			return err
		})
		if err == nil {
			c.Close()
			t.Errorf("%s, denied: connected", a.name())
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}
}

func dialBriefly(addr string) (net.Conn, error) {
	return net.DialTimeout("tcp4", addr, 200*time.Millisecond)
}
