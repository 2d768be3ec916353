package netbench

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cella.dev/cella/netvs"
	"cella.dev/cella/netvs/testnet"
)

// arm is one way to give a guest its network.
type arm interface {
	name() string
	guest() *testnet.Guest
	// setRules replaces the policy by one that allows everything but n small networks.
	setRules(n int) error
	close() error
}

// denied are n networks that no other covers. None of them is part of the world.
func denied(n int) []netip.Prefix {
	out := make([]netip.Prefix, n)
	for i := range out {
		out[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i>>14), byte(i >> 6), byte(i << 2), 0}), 30)
	}
	return out
}

// inside is what every guest has.
var inside = testnet.Address{MAC: netvs.GuestMAC, Addr: netvs.GuestAddr, Gateway: netvs.GatewayAddr}

// cella is the arm of package netvs.
type cella struct {
	dir     string
	network *netvs.Network
	sandbox *netvs.Sandbox
	g       *testnet.Guest
}

func newCella() (arm, error) {
	dir, err := os.MkdirTemp("", "cella-netbench-")
	if err != nil {
		return nil, err
	}
	c := &cella{dir: dir}
	if c.network, err = netvs.Open(netvs.Config{PinDir: filepath.Join(dir, "bpf"), Pool: 1}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if c.sandbox, err = c.network.Attach("bench", &netvs.Policy{Internet: true}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if c.g, err = testnet.NewGuest(c.sandbox.File(), inside); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cella) name() string          { return "cella" }
func (c *cella) guest() *testnet.Guest { return c.g }

func (c *cella) setRules(n int) error {
	p := &netvs.Policy{Internet: true}
	for _, d := range denied(n) {
		p.Deny = append(p.Deny, netvs.Rule{Prefix: d})
	}
	return c.sandbox.SetPolicy(p)
}

func (c *cella) close() error {
	var errs []error
	if c.g != nil {
		errs = append(errs, c.g.Close())
	}
	if c.network != nil {
		errs = append(errs, c.network.Remove())
	}
	if err := unix.Unmount(filepath.Join(c.dir, "bpf"), 0); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		errs = append(errs, fmt.Errorf("unmount the bpffs: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}
