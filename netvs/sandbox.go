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
