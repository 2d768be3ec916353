package netvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// A sandbox whose policy names hosts reaches their addresses because it asked for the name: each answer pins its
// addresses to the sandbox. A pin lasts as long as the record, a minute at least (records with a TTL of 0 are common,
// and connecting takes a moment), and longer while packets go to the address (bpf/verdict.h).
const (
	minPin = time.Minute
	maxPin = time.Hour
	// maxPinned is how many addresses one sandbox may have pinned; the soonest to end make room.
	maxPinned = 4096
)

// pinned is what is known of one address: the names it was learned for, and until when.
type pinned struct {
	names []string
	until time.Duration // since boot
}

// pin lets the sandbox reach addresses that were learned for a name. It does nothing unless its policy is by names.
func (s *Sandbox) pin(name string, addrs []netip.Addr, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.state.Flags&hasNames == 0 || !s.policy.MayResolve(name) {
		return nil // closed or changed while the answer was on its way
	}
	until := sinceBoot() + min(max(ttl, minPin), maxPin)
	for _, a := range addrs {
		p, known := s.pins[a]
		if !known && len(s.pins) >= maxPinned {
			if err := s.unpinSoonest(); err != nil {
				return err
			}
		}
		p.until = max(p.until, until)
		if !slices.Contains(p.names, name) {
			p.names = append(p.names, name)
		}
		key := tapPin{Epoch: s.state.Epoch, Addr: networkOrder(a)}
		if err := s.net.objects.Pins.Put(key, uint64(p.until)); err != nil {
			return fmt.Errorf("let sandbox %s reach %v: %w", s.ID, a, err)
		}
		s.pins[a] = p
	}
	return nil
}

// unpinSoonest drops the tenth of the pins that would end first. Its caller holds s.mu.
func (s *Sandbox) unpinSoonest() error {
	addrs := make([]netip.Addr, 0, len(s.pins))
	for a := range s.pins {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, func(a, b netip.Addr) int { return int(s.pins[a].until - s.pins[b].until) })
	return s.unpin(addrs[:maxPinned/10])
}

// unpin takes addresses away. Its caller holds s.mu.
func (s *Sandbox) unpin(addrs []netip.Addr) error {
	var errs []error
	for _, a := range addrs {
		key := tapPin{Epoch: s.state.Epoch, Addr: networkOrder(a)}
		if err := s.net.objects.Pins.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("take %v from sandbox %s: %w", a, s.ID, err))
		}
		delete(s.pins, a)
	}
	return errors.Join(errs...)
}

// reviewPins takes away what a new policy no longer names. Its caller holds s.mu.
func (s *Sandbox) reviewPins() error {
	var gone []netip.Addr
	for a, p := range s.pins {
		if s.state.Flags&hasNames == 0 || !slices.ContainsFunc(p.names, s.policy.MayResolve) {
			gone = append(gone, a)
		}
	}
	return s.unpin(gone)
}

// inheritPins finds the pins that a former process gave. Their names are unknown: a change of the policy drops them.
func (s *Sandbox) inheritPins() error {
	var key tapPin
	var until uint64
	it := s.net.objects.Pins.Iterate()
	for it.Next(&key, &until) {
		if key.Epoch == s.state.Epoch {
			s.pins[hostOrder(key.Addr)] = pinned{until: time.Duration(until)}
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("list the addresses that sandbox %s learned: %w", s.ID, err)
	}
	return nil
}
