package netvs

import (
	"fmt"
	"net/netip"
)

// MaxRules is how many addresses and names one policy may hold.
const MaxRules = 8192

// Policy is what a sandbox may reach. Allow wins over Deny, whatever their lengths; what neither names is allowed if
// Internet is true. Ranges that Config blocks stay closed in every case, and IPv6 is refused as a whole.
// The zero value reaches nothing.
type Policy struct {
	Internet bool
	Allow    []Rule
	Deny     []Rule
	// Names are the host names whose addresses may be reached, once they were resolved, where everything else is
	// denied. "*.example.org" stands for every name below example.org. See MayResolve.
	Names []string
}

// Rule names destinations. The zero Protocol is any, the zero Ports are all.
type Rule struct {
	Prefix   netip.Prefix
	Protocol Protocol
	Ports    Ports
}

// Protocol is an IP protocol's number.
type Protocol uint8

// The protocols that leave a sandbox.
const (
	AnyProtocol Protocol = 0
	ICMP        Protocol = 1
	TCP         Protocol = 6
	UDP         Protocol = 17
)

func (p Protocol) String() string {
	switch p {
	case AnyProtocol:
		return "any"
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprint(uint8(p))
}

// Ports is an inclusive range of ports.
type Ports struct{ Low, High uint16 }

// isAll says that ports don't matter.
func (p Ports) isAll() bool { return p == Ports{} || p == Ports{0, 65535} }

// coveredBy says that at one prefix o matches every packet that r matches.
func (r Rule) coveredBy(o Rule) bool {
	if o.Protocol != AnyProtocol && o.Protocol != r.Protocol {
		return false
	}
	return o.Ports.isAll() || !r.Ports.isAll() && o.Ports.Low <= r.Ports.Low && r.Ports.High <= o.Ports.High
}

func (r Rule) String() string {
	s := r.Prefix.String()
	if r.Protocol == AnyProtocol {
		return s
	}
	s += " " + r.Protocol.String()
	switch {
	case r.Ports.isAll():
	case r.Ports.Low == r.Ports.High:
		s += fmt.Sprintf("/%d", r.Ports.Low)
	default:
		s += fmt.Sprintf("/%d-%d", r.Ports.Low, r.Ports.High)
	}
	return s
}

// everything is all of IPv4.
var everything = netip.MustParsePrefix("0.0.0.0/0")
