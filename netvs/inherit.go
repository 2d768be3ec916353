package netvs

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// What a former process left is taken over, however it ended: whole taps wait for Adopt or Sweep, half-made ones go,
// and so does what the maps hold for taps that are no more.

// findOrphans gives the taps of a former process the programs of this one, and knows the other slots as free.
func (n *Network) findOrphans() error {
	there, err := taps(n.cfg)
	if err != nil {
		return err
	}
	taken := make(map[int]bool)
	for index, name := range there {
		slot, _ := slotOf(n.cfg, name)
		whole, err := n.renewPrograms(name)
		if err != nil {
			return fmt.Errorf("renew the eBPF programs of tap %s: %w", name, err)
		}
		if !whole {
			if err := n.removeHalfMade(name); err != nil {
				return fmt.Errorf("remove the half-made tap %s: %w", name, err)
			}
			delete(there, index)
			continue
		}
		taken[slot] = true
		n.orphans[name] = slot
	}
	for slot := range n.cfg.slots() {
		if !taken[slot] {
			n.free = append(n.free, slot)
		}
	}
	return errors.Join(n.dropEntries(there), n.dropTries(), n.dropPins())
}

// renewPrograms swaps the programs without a moment between. It says false if a link is missing: the former process
// died while it made the tap.
func (n *Network) renewPrograms(tap string) (whole bool, err error) {
	for where, prog := range map[string]*ebpf.Program{"in": n.objects.FromGuest, "out": n.objects.ToGuest} {
		l, err := link.LoadPinnedLink(n.linkPin(tap, where), nil)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("load a link: %w", err)
		}
		if err := errors.Join(l.Update(prog), l.Close()); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (n *Network) removeHalfMade(name string) error {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(unlink(n.linkPin(name, "in")), unlink(n.linkPin(name, "out")), netlink.LinkDel(dev))
}

// dropEntries forgets taps that are no more, and finds the highest number any sandbox has, so that none is given twice.
func (n *Network) dropEntries(there map[int]string) error {
	var gone []uint32
	var index uint32
	var s tapSandbox
	it := n.objects.Sandboxes.Iterate()
	for it.Next(&index, &s) {
		n.epoch = max(n.epoch, s.Epoch)
		if _, ok := there[int(index)]; !ok {
			gone = append(gone, index)
		}
	}
	errs := []error{it.Err()}
	for _, index := range gone {
		for _, m := range []*ebpf.Map{n.objects.Sandboxes, n.objects.Traffic} {
			if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, fmt.Errorf("forget device %d: %w", index, err))
			}
		}
	}
	return errors.Join(errs...)
}

// dropTries frees the tries of slots that have no tap.
func (n *Network) dropTries() error {
	for _, slot := range n.free {
		for place := uint32(2 * slot); place <= uint32(2*slot+1); place++ {
			var id ebpf.MapID
			if err := n.objects.Policies.Lookup(place, &id); errors.Is(err, ebpf.ErrKeyNotExist) {
				continue // deleting waits for the kernel, looking does not
			}
			if err := n.objects.Policies.Delete(place); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("free a policy's trie: %w", err)
			}
		}
	}
	return nil
}

// dropPins takes away the addresses that were pinned to sandboxes which are no more.
func (n *Network) dropPins() error {
	alive := make(map[uint32]bool)
	var index uint32
	var s tapSandbox
	sandboxes := n.objects.Sandboxes.Iterate()
	for sandboxes.Next(&index, &s) {
		alive[s.Epoch] = true
	}
	var gone []tapPin
	var key tapPin
	var until uint64
	pins := n.objects.Pins.Iterate()
	for pins.Next(&key, &until) {
		if !alive[key.Epoch] {
			gone = append(gone, key)
		}
	}
	errs := []error{sandboxes.Err(), pins.Err()}
	for _, key := range gone {
		if err := n.objects.Pins.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("forget %v: %w", hostOrder(key.Addr), err))
		}
	}
	return errors.Join(errs...)
}
