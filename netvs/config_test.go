package netvs

import (
	"net/netip"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestConfigCheck(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"default", Config{}, ""},
		{"small", Config{Range: netip.MustParsePrefix("192.168.9.0/24")}, ""},
		{"too large", Config{Range: netip.MustParsePrefix("10.0.0.0/8")}, "address range 10.0.0.0/8: name an IPv4 network from /16 to /24"},
		{"too small", Config{Range: netip.MustParsePrefix("10.0.0.0/30")}, "address range 10.0.0.0/30: name an IPv4 network from /16 to /24"},
		{"ipv6", Config{Range: netip.MustParsePrefix("fd00::/20")}, "address range fd00::/20: name an IPv4 network from /16 to /24"},
		{"bits behind it", Config{Range: netip.MustParsePrefix("10.1.2.3/16")}, "address range 10.1.2.3/16: name an IPv4 network from /16 to /24"},
		{"inside addresses", Config{Range: netip.MustParsePrefix("169.254.0.0/24")}, "address range 169.254.0.0/24 holds the addresses inside of guests, 169.254.0.20/30"},
		{"long name", Config{TapPrefix: "sandboxes"}, `tap prefix "sandboxes": 8 bytes are the most, as a number follows`},
		{"pool too large", Config{Range: netip.MustParsePrefix("10.1.2.0/24"), Pool: 254}, "pool of 254 taps: 10.1.2.0/24 has room for 253"},
		{"opens sandboxes", Config{Open: prefixes("10.0.0.0/8")}, "open range 10.0.0.0/8: holds addresses of sandboxes"},
		{"opens ipv6", Config{Open: prefixes("fd00::/8")}, "open range fd00::/8: name an IPv4 network"},
		{"opens a part", Config{Open: prefixes("10.20.0.0/16")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.cfg.withDefaults().check(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRoutesOverlap(t *testing.T) {
	tests := []struct {
		name   string
		routes []netip.Prefix
		want   string
	}{
		{"only a default route", prefixes("0.0.0.0/0", "203.0.113.0/24", "172.17.0.0/16"), ""},
		{"the same", prefixes("10.77.0.0/16"), "address range 10.77.0.0/16 overlaps the host's route to 10.77.0.0/16; 10.101.0.0/16 is free"},
		{"one inside", prefixes("10.77.3.0/24"), "address range 10.77.0.0/16 overlaps the host's route to 10.77.3.0/24; 10.101.0.0/16 is free"},
		{"a vpn around all of ten", prefixes("10.0.0.0/8"), "address range 10.77.0.0/16 overlaps the host's route to 10.0.0.0/8; 172.29.0.0/16 is free"},
		{"everything private", prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15"),
			"address range 10.77.0.0/16 overlaps the host's route to 10.0.0.0/8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := (Config{}).withDefaults().checkRoutes(tt.routes); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	c := Config{}.withDefaults()
	if c.resolver().String() != "10.77.0.1" || c.addr(0).String() != "10.77.0.2" || c.addr(4095).String() != "10.77.16.1" || c.slots() != 4096 {
		t.Errorf("%v %v %v %d", c.resolver(), c.addr(0), c.addr(4095), c.slots())
	}
}
