package netvs

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is the sandboxes' network on one host: taps ready to be given away, and those that were.
type Network struct {
	cfg     Config
	objects *tapObjects
	refill  chan struct{} // asks the pool's goroutine for taps
	closing chan struct{}
	done    chan struct{}  // the pool's goroutine has ended
	readers sync.WaitGroup // calls of Events, and what follows the host's addresses

	mu      sync.Mutex // guards what follows
	closed  bool
	ready   []*tap
	back    []*tap                  // given back, to be made ready again
	free    []int                   // slots without a tap, the longest unused first
	used    map[uint32]*Sandbox     // by epoch
	byAddr  map[netip.Addr]*Sandbox // the same by host-side address
	orphans map[string]int          // taps of a former process that nobody has claimed yet: name → slot
	epoch   uint32                  // last one given
}

// Open takes the host's part of the network into use: the address range, the rule set, programs and maps. What a
// former process left behind is taken over: see Adopt and Sweep. A *RangeError says that the range is in use.
// It turns net.ipv4.ip_forward on.
func Open(cfg Config) (*Network, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	routes, err := hostRoutes(cfg)
	if err != nil {
		return nil, err
	}
	if err := cfg.checkRoutes(routes); err != nil {
		return nil, err
	}
	n := &Network{
		cfg: cfg, used: make(map[uint32]*Sandbox), byAddr: make(map[netip.Addr]*Sandbox), orphans: make(map[string]int),
		refill: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	if err := n.setUp(); err != nil {
		return nil, err
	}
	if err := n.followHostAddrs(); err != nil {
		return nil, errors.Join(err, n.objects.Close())
	}
	go n.keepPoolFull()
	return n, nil
}

func (n *Network) setUp() error {
	if err := ensureBPFFS(n.cfg.PinDir); err != nil {
		return err
	}
	var err error
	if n.objects, err = loadObjects(n.cfg.resolver(), n.cfg.PinDir, 0); err != nil {
		return err
	}
	for _, step := range []func() error{n.blockRanges, n.findOrphans, func() error { return addResolverAddr(n.cfg) },
		func() error { return installRules(n.cfg) }, enableForwarding} {
		if err := step(); err != nil {
			return errors.Join(err, n.objects.Close())
		}
	}
	if other, err := foreignDrop(n.cfg); err == nil && other != "" {
		slog.Warn("a firewall drops forwarded packets by default: sandboxes have no way out until it accepts those of their taps",
			"chain", other, "taps", n.cfg.TapPrefix+"*")
	}
	return nil
}

// blockRanges closes what no policy opens: the ranges of neverReached, our own, and the host's addresses.
func (n *Network) blockRanges() error {
	own, err := hostAddrs()
	if err != nil {
		return err
	}
	return block(n.objects.Blocked, append(append(own, neverReached...), n.cfg.Range), n.cfg.Open)
}

// followHostAddrs blocks addresses that the host gets later. The rule set keeps sandboxes from the host's services in
// any case; this keeps them out before the kernel looks at the packet.
func (n *Network) followHostAddrs() error {
	updates := make(chan netlink.AddrUpdate, 64)
	if err := netlink.AddrSubscribe(updates, n.closing); err != nil {
		return fmt.Errorf("follow the host's addresses: %w", err)
	}
	n.readers.Go(func() {
		for range updates { // ends when closing does
			if err := n.blockRanges(); err != nil {
				slog.Error("could not block the host's new addresses; the rule set still does", "error", err)
			}
		}
	})
	return nil
}

// register makes the tap known to the programs, as one without a sandbox.
func (n *Network) register(t *tap) error {
	t.live = liveTrie{first: uint32(2 * t.slot)}
	if err := t.live.prepare(n.objects.Policies); err != nil {
		return err
	}
	if err := n.objects.Traffic.Put(uint32(t.index), make([]tapCounters, ebpf.MustPossibleCPU())); err != nil {
		return fmt.Errorf("make its counters: %w", err)
	}
	if err := n.objects.Sandboxes.Put(uint32(t.index), tapSandbox{}); err != nil {
		return fmt.Errorf("make its entry: %w", err)
	}
	return nil
}

func (n *Network) unregister(t *tap) error {
	errs := []error{t.live.remove(n.objects.Policies)}
	for _, m := range []*ebpf.Map{n.objects.Sandboxes, n.objects.Traffic} {
		if err := m.Delete(uint32(t.index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// askForTaps wakes the pool's goroutine.
func (n *Network) askForTaps() {
	select {
	case n.refill <- struct{}{}:
	default:
	}
}

// keepPoolFull makes taps in the background, first of those that came back, until closing.
func (n *Network) keepPoolFull() {
	defer close(n.done)
	for {
		n.takeBack()
		for n.wantsTap() {
			t, err := n.newTap()
			if errors.Is(err, ErrFull) {
				break
			}
			if err != nil {
				slog.Error("could not prepare a tap; creates will try again", "error", err)
				break
			}
			n.offer(t)
		}
		select {
		case <-n.closing:
			n.takeBack()
			return
		case <-n.refill:
		}
	}
}

func (n *Network) offer(t *tap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = append(n.ready, t)
}

// takeBack makes taps that were given back ready again, and removes those that are too many or can't be.
func (n *Network) takeBack() {
	n.mu.Lock()
	back := n.back
	n.back = nil
	n.mu.Unlock()
	for _, t := range back {
		if n.wantsTap() {
			err := n.recycle(t)
			if err == nil {
				n.offer(t)
				continue
			}
			slog.Warn("a tap can't be used again and is removed", "tap", t.name, "error", err)
		}
		if err := n.retire(t); err != nil {
			slog.Error("a tap could not be removed", "tap", t.name, "error", err)
		}
	}
}

func (n *Network) wantsTap() bool {
	select {
	case <-n.closing:
		return false
	default:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ready) < n.cfg.Pool
}

// newTap makes a tap in the slot that was unused the longest.
func (n *Network) newTap() (*tap, error) {
	n.mu.Lock()
	if len(n.free) == 0 {
		n.mu.Unlock()
		return nil, ErrFull
	}
	slot := n.free[0]
	n.free = n.free[1:]
	n.mu.Unlock()
	t, err := n.makeTap(slot)
	if err != nil {
		n.giveBack(slot)
		return nil, err
	}
	return t, nil
}

func (n *Network) giveBack(slot int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.free = append(n.free, slot)
}

// take returns a ready tap, or makes one.
func (n *Network) take() (*tap, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, ErrClosed
	}
	if len(n.ready) > 0 {
		t := n.ready[0]
		n.ready = n.ready[1:]
		n.mu.Unlock()
		n.askForTaps()
		return t, nil
	}
	n.mu.Unlock()
	return n.newTap()
}

// forget drops the kernel's connections of an address, so that its next owner inherits none.
func forget(addr netip.Addr) error {
	filter := &netlink.ConntrackFilter{}
	if err := filter.AddIP(netlink.ConntrackOrigSrcIP, addr.AsSlice()); err != nil {
		return err
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filter); err != nil {
		return fmt.Errorf("drop the connections of %v: %w", addr, err)
	}
	return nil
}

// Close lets go of the network. Sandboxes keep theirs: taps, programs, maps and rules stay for the next process.
// Only the taps that were ready for nobody go.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.closed = true
	n.mu.Unlock()
	close(n.closing)
	<-n.done
	n.readers.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, t := range n.ready {
		errs = append(errs, n.destroy(t))
	}
	for _, s := range n.used {
		errs = append(errs, s.leave())
	}
	return errors.Join(append(errs, n.objects.Close())...)
}

// Remove closes the network and takes everything away that it left on the host, sandboxes' taps included.
func (n *Network) Remove() error {
	errs := []error{n.Sweep()}
	n.mu.Lock()
	used := make([]*Sandbox, 0, len(n.used))
	for _, s := range n.used {
		used = append(used, s)
	}
	n.mu.Unlock()
	for _, s := range used {
		errs = append(errs, s.Close())
	}
	errs = append(errs, n.Close(), removeRules(n.cfg), removeResolverAddr(n.cfg))
	for _, m := range []string{tapMapSandboxes, tapMapTraffic, tapMapBlocked, tapMapPolicies, tapMapPins, tapMapEvents} {
		errs = append(errs, unlink(filepath.Join(n.cfg.PinDir, m)))
	}
	return errors.Join(errs...)
}

func unlink(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the pin %s: %w", path, err)
	}
	return nil
}
