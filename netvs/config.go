package netvs

import (
	"errors"
	"fmt"
	"net/netip"
)

// Config says where on the host the sandboxes' network lives. The zero value is usable.
type Config struct {
	// Range holds the addresses by which the host knows its sandboxes; nobody outside ever sees them. It must not
	// overlap any route of the host. From /16 to /24, default 10.77.0.0/16.
	Range netip.Prefix
	// TapPrefix begins the names of taps and is the name of the nftables table. At most 8 bytes, default "cella".
	TapPrefix string
	// PinDir is the directory, on a bpffs, where programs and maps outlive the process. It is made, and a bpffs
	// mounted at it, if need be. Default /run/cella/bpf.
	PinDir string
	// Pool is how many taps are kept ready. Default 16.
	Pool int
	// Open are ranges that an operator lets policies reach although they are private.
	Open []netip.Prefix
}

// maxTaps is bound by the maps of bpf/types.h: two tries each.
const maxTaps = 4096

func (c Config) withDefaults() Config {
	if !c.Range.IsValid() {
		c.Range = netip.MustParsePrefix("10.77.0.0/16")
	}
	if c.TapPrefix == "" {
		c.TapPrefix = "cella"
	}
	if c.PinDir == "" {
		c.PinDir = "/run/cella/bpf"
	}
	if c.Pool == 0 {
		c.Pool = 16
	}
	return c
}

func (c Config) check() error {
	r := c.Range
	if !r.Addr().Is4() || r.Bits() < 16 || r.Bits() > 24 || r != r.Masked() {
		return fmt.Errorf("address range %v: name an IPv4 network from /16 to /24", r)
	}
	if r.Overlaps(GuestAddr.Masked()) {
		return fmt.Errorf("address range %v holds the addresses inside of guests, %v", r, GuestAddr.Masked())
	}
	if len(c.TapPrefix) > 8 {
		return fmt.Errorf("tap prefix %q: 8 bytes are the most, as a number follows", c.TapPrefix)
	}
	if c.Pool < 0 || c.Pool > c.slots() {
		return fmt.Errorf("pool of %d taps: %v has room for %d", c.Pool, r, c.slots())
	}
	for _, p := range c.Open {
		if !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("open range %v: name an IPv4 network", p)
		}
		if p.Overlaps(r) || p.Overlaps(GuestAddr.Masked()) {
			return fmt.Errorf("open range %v: holds addresses of sandboxes", p)
		}
	}
	return nil
}

// slots is how many taps the range has addresses for: all but the network's, the resolver's and the last.
func (c Config) slots() int { return min(1<<(32-c.Range.Bits())-3, maxTaps) }

// resolver is the host's address towards sandboxes: the first of the range.
func (c Config) resolver() netip.Addr { return c.Range.Addr().Next() }

// addr is the host-side address of a slot.
func (c Config) addr(slot int) netip.Addr {
	b := c.Range.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(slot) + 2
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// RangeError says that the host has routes into the range, and which one it hasn't.
type RangeError struct {
	Range, Route netip.Prefix
	// Suggest is a free range of the same size; invalid if there is none among those usually free.
	Suggest netip.Prefix
}

func (e *RangeError) Error() string {
	s := fmt.Sprintf("address range %v overlaps the host's route to %v", e.Range, e.Route)
	if e.Suggest.IsValid() {
		s += fmt.Sprintf("; %v is free", e.Suggest)
	}
	return s
}

// candidates are ranges that few networks use, the last ones least.
var candidates = []string{"10.77.0.0", "10.101.0.0", "10.213.0.0", "172.29.0.0", "192.168.0.0", "100.125.0.0", "198.18.0.0"}

// checkRoutes refuses a range that any of the host's routes leads into. Default routes lead everywhere and don't count.
func (c Config) checkRoutes(routes []netip.Prefix) error {
	hit := overlap(c.Range, routes)
	if !hit.IsValid() {
		return nil
	}
	e := &RangeError{Range: c.Range, Route: hit}
	for _, s := range candidates {
		p := netip.PrefixFrom(netip.MustParseAddr(s), c.Range.Bits())
		if !overlap(p, routes).IsValid() {
			e.Suggest = p
			break
		}
	}
	return e
}

func overlap(p netip.Prefix, routes []netip.Prefix) netip.Prefix {
	for _, r := range routes {
		if r.Bits() > 0 && r.Overlaps(p) {
			return r
		}
	}
	return netip.Prefix{}
}

// Errors that callers decide on.
var (
	// ErrFull says that the range has no address left for another sandbox.
	ErrFull = errors.New("every address of the sandboxes' range is in use")
	// ErrClosed says that the network, or the sandbox's part of it, was closed.
	ErrClosed = errors.New("network is closed")
)
