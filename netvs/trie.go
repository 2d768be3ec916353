package netvs

import (
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

// entries folds the IPv4 rules so that the longest match alone decides. A trie's lookup finds one prefix, but allow
// wins over deny whatever their lengths: so each prefix gets the rules of all that contain it, and those that change
// nothing are left out. IPv6 never leaves a sandbox, so its rules have nothing to do.
func (p *Policy) entries() ([]entry, error) {
	own := make(map[netip.Prefix]*effect, len(p.Allow)+len(p.Deny))
	at := func(r Rule) *effect {
		e := own[r.Prefix]
		if e == nil {
			e = &effect{}
			own[r.Prefix] = e
		}
		return e
	}
	for _, r := range ipv4(p.Allow) {
		e := at(r)
		e.allow = merge(e.allow, r)
	}
	for _, r := range ipv4(p.Deny) {
		e := at(r)
		e.deny = merge(e.deny, r)
	}
	return fold(own)
}

func ipv4(rules []Rule) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return !r.Prefix.Addr().Is4() })
}

// fold walks the prefixes from the shortest down; the stack holds those around the current one.
func fold(own map[netip.Prefix]*effect) ([]entry, error) {
	prefixes := make([]netip.Prefix, 0, len(own))
	for p := range own {
		prefixes = append(prefixes, p)
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out, around []entry
	for _, p := range prefixes {
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(p.Addr()) {
			around = around[:len(around)-1]
		}
		outer := effect{}
		if len(around) > 0 {
			outer = around[len(around)-1].effect
		}
		e := entry{p, outer.with(own[p])}
		if n := len(e.effect.allow) + len(e.effect.deny); n > maxRulesAtPrefix {
			return nil, fmt.Errorf("%d rules about protocols and ports meet at %v, %d is the most: %w", n, p, maxRulesAtPrefix, ErrTooManyRules)
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
func (e effect) with(own *effect) effect {
	sum := effect{slices.Clone(e.allow), slices.Clone(e.deny)}
	for _, r := range own.allow {
		sum.allow = merge(sum.allow, r)
	}
	for _, r := range own.deny {
		sum.deny = merge(sum.deny, r)
	}
	if len(sum.allow) == 1 && sum.allow[0] == (Rule{}) {
		sum.deny = nil
	}
	return sum
}

func (e effect) equal(o effect) bool {
	return slices.Equal(e.allow, o.allow) && slices.Equal(e.deny, o.deny)
}

// merge adds a rule, without its prefix, unless another covers it, and drops those that it covers.
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
	rules = slices.DeleteFunc(rules, func(have Rule) bool { return have.coveredBy(r) })
	return append(rules, r)
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
