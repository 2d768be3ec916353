package netvs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// recycle makes a tap as good as new. Closing its descriptor and opening the device again throws the frames away that
// waited in it, and proves that no VMM still holds it: the kernel gives a tap to one holder only.
func (n *Network) recycle(t *tap) error {
	if t.file != nil {
		if err := t.file.Close(); err != nil {
			return fmt.Errorf("close it: %w", err)
		}
		t.file = nil
	}
	f, err := openTap(t.name, 0)
	if err != nil {
		return err
	}
	t.file = f
	if err := control(f, func(fd int) error { return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0) }); err != nil {
		return fmt.Errorf("reset its offloads: %w", err)
	}
	if err := n.objects.Traffic.Put(uint32(t.index), make([]tapCounters, ebpf.MustPossibleCPU())); err != nil {
		return fmt.Errorf("reset its counters: %w", err)
	}
	return errors.Join(t.live.empty(n.objects.Policies), forget(t.addr))
}

// retire removes a tap for good and frees its slot. The device goes even if somebody still holds it open.
func (n *Network) retire(t *tap) error {
	dev, err := netlink.LinkByName(t.name)
	errs := []error{err, n.destroy(t)}
	if err == nil {
		if err := netlink.LinkDel(dev); err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("delete tap %s: %w", t.name, err))
		}
	}
	errs = append(errs, forget(t.addr))
	n.giveBack(t.slot)
	return errors.Join(errs...)
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}
