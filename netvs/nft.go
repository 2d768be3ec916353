package netvs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rule set, in nft's words. It is a table of its own and touches no other's.
//
//	table ip cella {
//		chain forward { type filter hook forward priority filter
//			iifgroup TAPS oifgroup TAPS drop                              # no sandbox reaches another
//			oifgroup TAPS ct state established,related meta mark set ... accept
//			oifgroup TAPS drop                                            # nobody opens a flow to a sandbox
//			iifgroup TAPS ct state invalid drop
//		}
//		chain input { type filter hook input priority filter
//			iifgroup TAPS ip daddr RESOLVER udp dport 53 accept
//			iifgroup TAPS ip daddr RESOLVER tcp dport 53 accept
//			iifgroup TAPS drop                                            # no sandbox reaches the host
//		}
//		chain output { type filter hook output priority filter
//			oifgroup TAPS ct state established,related meta mark set ... accept
//			oifgroup TAPS drop                                            # nor does the host open flows to it
//		}
//		chain postrouting { type nat hook postrouting priority srcnat
//			iifgroup TAPS masquerade
//		}
//	}
//
// The mark is what to_guest wants to see: without this table nothing reaches a guest.

// rule is a list of expressions.
type rule []expr.Any

func group(key expr.MetaKey, op expr.CmpOp) rule {
	return rule{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(tapGroup)}}
}

func fromTaps() rule { return group(expr.MetaKeyIIFGROUP, expr.CmpOpEq) }
func toTaps() rule   { return group(expr.MetaKeyOIFGROUP, expr.CmpOpEq) }

// stateIn matches packets of any of the conntrack states.
func stateIn(bits uint32) rule {
	return rule{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// setMark sets our bits of the mark and leaves the others.
func setMark() rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^markMask), Xor: binaryutil.NativeEndian.PutUint32(markEstablished)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// destination matches address, protocol and port.
func destination(addr []byte, protocol Protocol, port uint16) rule {
	return rule{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{uint8(protocol)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	}
}

func accept() rule { return rule{&expr.Verdict{Kind: expr.VerdictAccept}} }
func deny() rule   { return rule{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }

// chain is a base chain and its rules.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]rule
}

func (c Config) chains() []chain {
	resolver := c.resolver().AsSlice()
	replies := stateIn(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []chain{
		{"forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, [][]rule{
			{fromTaps(), toTaps(), deny()},
			{toTaps(), replies, setMark(), accept()},
			{toTaps(), deny()},
			{fromTaps(), stateIn(expr.CtStateBitINVALID), deny()},
		}},
		{"input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, [][]rule{
			{fromTaps(), destination(resolver, UDP, 53), accept()},
			{fromTaps(), destination(resolver, TCP, 53), accept()},
			{fromTaps(), deny()},
		}},
		{"output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, [][]rule{
			{toTaps(), replies, setMark(), accept()},
			{toTaps(), deny()},
		}},
		{"postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, [][]rule{
			{fromTaps(), {&expr.Masq{}}},
		}},
	}
}

// installRules puts the table in place in one transaction: there is no moment without it.
func installRules(c Config) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: c.TapPrefix}
	conn.AddTable(table) // so that there is one to delete
	conn.DelTable(table)
	conn.AddTable(table)
	for _, ch := range c.chains() {
		base := conn.AddChain(&nftables.Chain{Table: table, Name: ch.name, Type: ch.kind, Hooknum: ch.hook, Priority: ch.priority})
		for _, parts := range ch.rules {
			r := &nftables.Rule{Table: table, Chain: base}
			for _, p := range parts {
				r.Exprs = append(r.Exprs, p...)
			}
			conn.AddRule(r)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install the nftables table %q: %w", c.TapPrefix, err)
	}
	return nil
}

func removeRules(c Config) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: c.TapPrefix})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the nftables table %q: %w", c.TapPrefix, err)
	}
	return nil
}

// foreignDrop names a chain of somebody else that drops forwarded packets by default, as Docker's does: ours can't
// overrule it. Empty if there is none.
func foreignDrop(c Config) (string, error) {
	conn, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return "", fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != c.TapPrefix && ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward &&
			ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop {
			return ch.Table.Name + " " + ch.Name, nil
		}
	}
	return "", nil
}
