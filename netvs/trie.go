package netvs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// maxRulesAtPrefix is MAX_RULES of bpf/types.h.
const maxRulesAtPrefix = 8

// trieCapacity is how many prefixes a trie takes (bpf/types.h); folding never makes more than there are rules.
const trieCapacity = 16384

// entry is one entry of a policy's trie: all rules that hold at a prefix.
type entry struct {
	prefix netip.Prefix
	effect effect
}

// effect is what holds at a prefix: its own rules and those of every shorter prefix around it.
type effect struct{ allow, deny []Rule }

// verdict is one rule with its place in the order of the walk: address, then length.
type verdict struct {
	order uint64
	rule  Rule
	allow bool
}

// entries folds the IPv4 rules so that the longest match alone decides. A trie's lookup finds one prefix, but allow
// wins over deny whatever their lengths: so each prefix gets the rules of all that contain it, and those that change
// nothing are left out. IPv6 never leaves a sandbox, so its rules have nothing to do.
func (p *Policy) entries() ([]entry, error) {
	all := make([]verdict, 0, len(p.Allow)+len(p.Deny))
	add := func(rules []Rule, allow bool) {
		for _, r := range rules {
			if a := r.Prefix.Addr(); a.Is4() {
				b := a.As4()
				all = append(all, verdict{uint64(binary.BigEndian.Uint32(b[:]))<<8 | uint64(r.Prefix.Bits()), r, allow})
			}
		}
	}
	add(p.Allow, true)
	add(p.Deny, false)
	slices.SortStableFunc(all, func(a, b verdict) int { return cmp.Compare(a.order, b.order) })
	return fold(all)
}

// fold walks the prefixes from the shortest down; around holds those that contain the current one.
func fold(all []verdict) ([]entry, error) {
	out := make([]entry, 0, len(all))
	var around []entry
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].order == all[0].order {
			same++
		}
		prefix := all[0].rule.Prefix
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(prefix.Addr()) {
			around = around[:len(around)-1]
		}
		outer := effect{}
		if len(around) > 0 {
			outer = around[len(around)-1].effect
		}
		e := entry{prefix, outer.with(all[:same])}
		all = all[same:]
		if n := len(e.effect.allow) + len(e.effect.deny); n > maxRulesAtPrefix {
			return nil, fmt.Errorf("%d rules about protocols and ports meet at %v, %d is the most: %w", n, prefix, maxRulesAtPrefix, ErrTooManyRules)
		}
		if e.effect.equal(outer) {
			continue
		}
		around = append(around, e)
		out = append(out, e)
	}
	return out, nil
}

// with adds the rules of a longer prefix. Once everything is allowed, nothing else matters.
func (e effect) with(own []verdict) effect {
	for _, v := range own {
		if v.allow {
			e.allow = merge(e.allow, v.rule)
		} else {
			e.deny = merge(e.deny, v.rule)
		}
	}
	if len(e.allow) == 1 && e.allow[0] == (Rule{}) {
		e.deny = nil
	}
	return e
}

func (e effect) equal(o effect) bool {
	return slices.Equal(e.allow, o.allow) && slices.Equal(e.deny, o.deny)
}

// merge adds a rule, without its prefix, unless another covers it, and drops those that it covers. The rules that it is
// given stay as they are: those of the prefixes around share them.
func merge(rules []Rule, r Rule) []Rule {
	r.Prefix = netip.Prefix{}
	if r.Ports.isAll() {
		r.Ports = Ports{}
	}
	for _, have := range rules {
		if r.coveredBy(have) {
			return rules
		}
	}
	out := make([]Rule, 0, len(rules)+1)
	for _, have := range rules {
		if !have.coveredBy(r) {
			out = append(out, have)
		}
	}
	return append(out, r)
}

// encode returns the entry as the trie holds it.
func (e entry) encode() (tapPrefix, tapRules) {
	key := tapPrefix{Len: uint32(e.prefix.Bits()), Addr: networkOrder(e.prefix.Addr())}
	var value tapRules
	for _, r := range e.effect.allow {
		value.add(r, 1)
	}
	for _, r := range e.effect.deny {
		value.add(r, 0)
	}
	return key, value
}

func (v *tapRules) add(r Rule, allow uint8) {
	high := r.Ports.High
	if r.Ports.isAll() {
		high = 65535
	}
	v.Rule[v.N] = tapRule{Low: r.Ports.Low, High: high, Protocol: uint8(r.Protocol), Allow: allow}
	v.N++
}

// networkOrder is an IPv4 address as the programs keep it: its bytes as on the wire.
func networkOrder(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// newTrie makes an empty trie that fits into policies.
func newTrie() (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "policy", Type: ebpf.LPMTrie, MaxEntries: trieCapacity, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: 8, ValueSize: 4 + 8*maxRulesAtPrefix, // struct prefix, struct rules
	})
	if err != nil {
		return nil, fmt.Errorf("make a policy's trie: %w", err)
	}
	return m, nil
}

// fill puts the entries into an empty trie.
func fill(trie *ebpf.Map, entries []entry) error {
	if len(entries) == 0 {
		return nil
	}
	keys, values := make([]tapPrefix, len(entries)), make([]tapRules, len(entries))
	for i, e := range entries {
		keys[i], values[i] = e.encode()
	}
	if n, err := trie.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("put %d prefixes into a policy's trie (%d done): %w", len(entries), n, err)
	}
	return nil
}

// flags are those that the policy's parts need in the programs.
func (p *Policy) flags(entries int) uint32 {
	f := uint32(hasDNS) // the resolver answers always, if only that it refuses
	if p.Internet {
		f |= allowDefault
	}
	if entries > 0 {
		f |= hasRules
	}
	if len(p.Names) > 0 {
		f |= hasNames
	}
	return f
}
