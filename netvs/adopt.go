package netvs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Adopt takes over the tap of a sandbox that was attached by a former process, and gives it its policy again, without
// a gap. The tap's descriptor belongs to the VMM by now, so File is nil.
func (n *Network) Adopt(id, tapName string, p *Policy) (*Sandbox, error) {
	entries, err := p.entries()
	if err != nil {
		return nil, fmt.Errorf("adopt sandbox %s: %w", id, err)
	}
	n.mu.Lock()
	slot, ok := n.orphans[tapName]
	delete(n.orphans, tapName)
	n.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("adopt sandbox %s: there is no tap %s left by another process", id, tapName)
	}
	s, err := n.adoptTap(id, tapName, slot)
	if err == nil {
		err = s.apply(p, entries)
	}
	if err != nil {
		n.mu.Lock()
		n.orphans[tapName] = slot
		n.mu.Unlock()
		return nil, fmt.Errorf("adopt sandbox %s: %w", id, err)
	}
	n.mu.Lock()
	n.used[s.state.Epoch], n.byAddr[s.tap.addr] = s, s
	n.mu.Unlock()
	return s, nil
}

func (n *Network) adoptTap(id, name string, slot int) (*Sandbox, error) {
	t, err := n.reopen(name, slot)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{ID: id, net: n, tap: t, pins: make(map[netip.Addr]pinned)}
	if err := n.objects.Sandboxes.Lookup(uint32(t.index), &s.state); err != nil {
		return nil, fmt.Errorf("read the state of tap %s: %w", name, err)
	}
	if s.state.Epoch == 0 {
		return nil, fmt.Errorf("tap %s has no sandbox", name)
	}
	t.live.live = s.state.Policy - t.live.first
	return s, errors.Join(s.inheritPins(), t.live.prepare(n.objects.Policies))
}

// reopen finds what there is of a tap: the device and the pinned links.
func (n *Network) reopen(name string, slot int) (*tap, error) {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find tap %s: %w", name, err)
	}
	t := &tap{slot: slot, name: name, index: dev.Attrs().Index, addr: n.cfg.addr(slot), live: liveTrie{first: uint32(2 * slot)}}
	for _, where := range []string{"in", "out"} {
		l, err := link.LoadPinnedLink(n.linkPin(name, where), nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("load the link of tap %s: %w", name, err), closeLinks(t.links))
		}
		t.links = append(t.links, l)
	}
	return t, nil
}

func closeLinks(links []link.Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Sweep removes the taps of a former process that nobody adopted.
func (n *Network) Sweep() error {
	n.mu.Lock()
	orphans := n.orphans
	n.orphans = make(map[string]int)
	n.mu.Unlock()
	var errs []error
	for name, slot := range orphans {
		t, err := n.reopen(name, slot)
		if err == nil {
			err = n.retire(t)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, n.dropPins())...)
}
