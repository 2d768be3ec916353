package netvs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Sandbox is one sandbox's part of the network: a tap that is its own.
type Sandbox struct {
	// ID is the caller's name for it, for logs.
	ID  string
	net *Network
	tap *tap

	questions questions

	mu     sync.Mutex // guards what follows, and the tap's live trie
	closed bool
	state  tapSandbox
	policy *Policy
	pins   map[netip.Addr]pinned
}

// Attach gives the sandbox a tap with the policy in force before the first packet can pass. A ready tap costs two map
// updates; without one it is made, which takes tens of milliseconds.
func (n *Network) Attach(id string, p *Policy) (*Sandbox, error) {
	entries, err := p.entries()
	if err != nil {
		return nil, fmt.Errorf("attach sandbox %s: %w", id, err)
	}
	t, err := n.take()
	if err != nil {
		return nil, fmt.Errorf("attach sandbox %s: %w", id, err)
	}
	n.mu.Lock()
	n.epoch++
	s := &Sandbox{ID: id, net: n, tap: t, pins: make(map[netip.Addr]pinned)}
	s.state = tapSandbox{Epoch: n.epoch, HostAddr: networkOrder(t.addr)}
	n.used[s.state.Epoch], n.byAddr[t.addr] = s, s
	n.mu.Unlock()
	if err := s.apply(p, entries); err != nil {
		return nil, errors.Join(fmt.Errorf("attach sandbox %s: %w", id, err), s.Close())
	}
	return s, nil
}

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
	return errors.Join(errs...)
}

// SetPolicy replaces the policy as a whole and at once: every packet is judged by the old one or the new one. On an
// error the old one stays.
func (s *Sandbox) SetPolicy(p *Policy) error {
	entries, err := p.entries()
	if err != nil {
		return fmt.Errorf("set policy of sandbox %s: %w", s.ID, err)
	}
	if err := s.apply(p, entries); err != nil {
		return fmt.Errorf("set policy of sandbox %s: %w", s.ID, err)
	}
	return nil
}

func (s *Sandbox) apply(p *Policy, entries []entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	next := s.state
	next.Flags = p.flags(len(entries))
	if len(entries) > 0 {
		place, err := s.tap.live.fill(s.net.objects.Policies, entries)
		if err != nil {
			return err
		}
		next.Policy = place
	}
	if err := s.write(next); err != nil {
		return err
	}
	changed := s.policy != nil
	s.policy = p
	var errs []error
	if changed {
		errs = append(errs, s.reviewPins())
	}
	if len(entries) > 0 {
		errs = append(errs, s.tap.live.flip(s.net.objects.Policies))
	}
	return errors.Join(errs...)
}

// write changes what the programs know of the sandbox, in place and under the entry's lock.
func (s *Sandbox) write(next tapSandbox) error {
	if err := s.net.objects.Sandboxes.Update(uint32(s.tap.index), next, ebpf.UpdateExist|ebpf.UpdateLock); err != nil {
		return fmt.Errorf("update the entry of tap %s: %w", s.tap.name, err)
	}
	s.state = next
	return nil
}

// File is the tap, to be given to the VMM: frames behind a virtio-net header of VnetHeaderBytes. It stays the
// network's own to close. Nil for an adopted sandbox.
func (s *Sandbox) File() *os.File { return s.tap.file }

// Tap is the device's name, which Adopt wants to know.
func (s *Sandbox) Tap() string { return s.tap.name }

// HostAddr is the address by which the host knows the sandbox.
func (s *Sandbox) HostAddr() netip.Addr { return s.tap.addr }

// Policy is the one in force. It must not be changed.
func (s *Sandbox) Policy() *Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

// Close takes the network from the sandbox: when it returns, nothing passes any more. The tap is made ready for
// another in the background. The VMM must be gone by then; if it is not, the tap is removed.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	epoch := s.state.Epoch
	err := s.unpin(slices.Collect(maps.Keys(s.pins)))
	err = errors.Join(s.write(tapSandbox{}), err)
	s.mu.Unlock()
	s.net.mu.Lock()
	delete(s.net.used, epoch)
	delete(s.net.byAddr, s.tap.addr)
	s.net.back = append(s.net.back, s.tap)
	s.net.mu.Unlock()
	s.net.askForTaps()
	return err
}

// leave lets go of the sandbox for the next process to adopt.
func (s *Sandbox) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	errs := []error{s.tap.live.wait(), closeLinks(s.tap.links)}
	if s.tap.live.spare != nil {
		errs = append(errs, s.tap.live.spare.Close())
	}
	if s.tap.file != nil {
		errs = append(errs, s.tap.file.Close())
	}
	return errors.Join(errs...)
}

// sandboxAt finds the sandbox with a host-side address; nil if there is none.
func (n *Network) sandboxAt(addr netip.Addr) *Sandbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byAddr[addr]
}
