package netbench

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	routes "github.com/vishvananda/netlink"

	"cella.dev/cella/netvs"
	"cella.dev/cella/netvs/testnet"
)

// plain is the peer: a tap with the gateway's address, and in nftables the same policy as netvs has: only the guest's
// address leaves, private ranges and the denied networks are sets of intervals, replies come back by conntrack, and
// the way out is masqueraded.
type plain struct {
	tap   *os.File
	g     *testnet.Guest
	table *nftables.Table
	set   *nftables.Set // the denied networks
}

const plainTap = "plain0"

func newPlain() (arm, error) {
	p := &plain{}
	if err := p.setUp(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *plain) name() string          { return "nftables" }
func (p *plain) guest() *testnet.Guest { return p.g }

func (p *plain) setUp() (err error) {
	if p.tap, err = testnet.OpenTap(plainTap); err != nil {
		return err
	}
	dev, err := routes.LinkByName(plainTap)
	if err != nil {
		return fmt.Errorf("find the plain tap: %w", err)
	}
	gateway := netip.PrefixFrom(netvs.GatewayAddr, netvs.GuestAddr.Bits()).String()
	if err := errors.Join(routes.LinkSetHardwareAddr(dev, netvs.GatewayMAC), testnet.AddAddr(plainTap, gateway)); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	if err := p.install(); err != nil {
		return err
	}
	p.g, err = testnet.NewGuest(p.tap, inside)
	return err
}

// device matches the plain tap.
func device(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	name := make([]byte, 16)
	copy(name, plainTap)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}

// address loads a field of the IPv4 header: 12 is the source, 16 the destination.
func address(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func states(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func join(parts ...[]expr.Any) (out []expr.Any) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func (p *plain) install() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	p.table = conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "plain"})
	blocked := &nftables.Set{Table: p.table, Name: "blocked", KeyType: nftables.TypeIPAddr, Interval: true}
	p.set = &nftables.Set{Table: p.table, Name: "denied", KeyType: nftables.TypeIPAddr, Interval: true}
	for _, s := range []*nftables.Set{blocked, p.set} {
		if err := conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	if err := conn.SetAddElements(blocked, intervals(netvs.NeverReached())); err != nil {
		return err
	}
	drop, accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	out, in := device(expr.MetaKeyIIFNAME, expr.CmpOpEq), device(expr.MetaKeyOIFNAME, expr.CmpOpEq)
	lookup := func(s *nftables.Set) []expr.Any {
		return []expr.Any{address(16), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
	}
	forged := []expr.Any{address(12), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: netvs.GuestAddr.Addr().AsSlice()}}
	add := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority, rules ...[]expr.Any) {
		chain := conn.AddChain(&nftables.Chain{Table: p.table, Name: name, Type: kind, Hooknum: hook, Priority: prio})
		for _, r := range rules {
			conn.AddRule(&nftables.Rule{Table: p.table, Chain: chain, Exprs: r})
		}
	}
	add("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter,
		join(out, forged, drop), join(out, lookup(blocked), drop), join(out, lookup(p.set), drop),
		join(in, states(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept), join(in, drop))
	add("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, join(out, drop))
	add("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		join(out, []expr.Any{&expr.Masq{}}))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install the peer's nftables rules: %w", err)
	}
	return nil
}

// intervals are the elements of a set: the first address of each network, and the first behind it.
func intervals(list []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	for _, p := range list {
		first := p.Addr().As4()
		n := uint32(first[0])<<24 | uint32(first[1])<<16 | uint32(first[2])<<8 | uint32(first[3])
		n += 1 << (32 - p.Bits())
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if n != 0 { // behind the last network there is nothing
			out = append(out, nftables.SetElement{Key: []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, IntervalEnd: true})
		}
	}
	return out
}

// setRules replaces the set in one transaction.
func (p *plain) setRules(n int) error {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetReadBuffer(8 << 20) // the kernel acknowledges each of thousands of elements
	}))
	if err != nil {
		return err
	}
	conn.FlushSet(p.set)
	for part := range slices.Chunk(denied(n), 500) { // a message holds 64 KiB
		if err := conn.SetAddElements(p.set, intervals(part)); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace the peer's %d rules: %w", n, err)
	}
	return nil
}

func (p *plain) close() error {
	var errs []error
	if p.g != nil {
		errs = append(errs, p.g.Close())
	}
	if p.tap != nil {
		errs = append(errs, p.tap.Close())
	}
	conn, err := nftables.New()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if p.table != nil {
		conn.DelTable(p.table)
		errs = append(errs, conn.Flush())
	}
	return errors.Join(errs...)
}
