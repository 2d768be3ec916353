package netvs

import (
	"fmt"
	"maps"
	"os"
	"slices"
)

// Stats counts a sandbox's packets since it was attached.
type Stats struct {
	// Packets by what became of them.
	Packets map[Reason]uint64
	// BytesOut left the sandbox, BytesIn reached it; whole frames.
	BytesOut, BytesIn uint64
	// EventsDropped were denied packets too many to report one by one.
	EventsDropped uint64
	// NamesAnswered and NamesRefused are questions to the resolver, since this process knows the sandbox.
	NamesAnswered, NamesRefused uint64
}

// Dropped is the number of packets that went nowhere.
func (s Stats) Dropped() uint64 {
	var n uint64
	for r, count := range s.Packets {
		if r.Dropped() {
			n += count
		}
	}
	return n
}

// Stats reads the counters.
func (s *Sandbox) Stats() (Stats, error) {
	var perCPU []tapCounters
	if err := s.net.objects.Traffic.Lookup(uint32(s.tap.index), &perCPU); err != nil {
		return Stats{}, fmt.Errorf("read the counters of sandbox %s: %w", s.ID, err)
	}
	sum := Stats{Packets: make(map[Reason]uint64)}
	sum.NamesAnswered, sum.NamesRefused = s.questions.answered.Load(), s.questions.refused.Load()
	for _, c := range perCPU {
		for r, n := range c.Packets {
			if n > 0 {
				sum.Packets[Reason(r)] += n
			}
		}
		sum.BytesOut += c.BytesOut
		sum.BytesIn += c.BytesIn
		sum.EventsDropped += c.EventsDropped
	}
	return sum, nil
}

// Census is what the network has on the host, to be compared before and after.
type Census struct {
	Taps, Pins []string
	// Entries are the sandboxes' places in the programs' maps.
	Entries int
	// Ready taps wait for a sandbox, Used ones have one, Back ones are being made ready again.
	Ready, Used, Back int
}

// Census counts.
func (n *Network) Census() (Census, error) {
	var c Census
	there, err := taps(n.cfg)
	if err != nil {
		return c, err
	}
	c.Taps = slices.Sorted(maps.Values(there))
	pins, err := os.ReadDir(n.cfg.PinDir)
	if err != nil {
		return c, fmt.Errorf("list pins: %w", err)
	}
	for _, p := range pins {
		c.Pins = append(c.Pins, p.Name())
	}
	var index uint32
	var s tapSandbox
	it := n.objects.Sandboxes.Iterate()
	for it.Next(&index, &s) {
		c.Entries++
	}
	if err := it.Err(); err != nil {
		return c, fmt.Errorf("list sandboxes in the maps: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c.Ready, c.Used, c.Back = len(n.ready), len(n.used), len(n.back)
	return c, nil
}
