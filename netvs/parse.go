package netvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Request is a policy as the E2B API spells it. Entries are addresses, CIDRs and, in AllowOut, host names. As our own
// extension an address may be followed by a protocol and ports: "192.0.2.0/24 tcp/443", "192.0.2.7 udp/5000-5100".
type Request struct {
	// AllowInternetAccess is nil where the caller did not say, which means yes. No is the same as denying everything.
	AllowInternetAccess *bool
	AllowOut, DenyOut   []string
}

// ErrTooManyRules is in the error of a request with more entries than MaxRules, or with more rules about ports at one
// address than fit.
var ErrTooManyRules = errors.New("too many rules")

// EntryError names the entry of a request that is wrong.
type EntryError struct {
	Field  string // such as "denyOut[3]"
	Entry  string
	Reason error
}

func (e *EntryError) Error() string { return fmt.Sprintf("%s %q: %v", e.Field, e.Entry, e.Reason) }

func (e *EntryError) Unwrap() error { return e.Reason }

// Policy checks the request whole, and returns what it means. Errors are *EntryError or wrap ErrTooManyRules.
func (r Request) Policy() (*Policy, error) {
	if n := len(r.AllowOut) + len(r.DenyOut); n > MaxRules {
		return nil, fmt.Errorf("allowOut and denyOut have %d entries, %d is the most: %w", n, MaxRules, ErrTooManyRules)
	}
	p := &Policy{Internet: r.AllowInternetAccess == nil || *r.AllowInternetAccess}
	denied := make(map[Rule]bool, len(r.DenyOut))
	for i, entry := range r.DenyOut {
		rule, err := parseRule(entry)
		if err != nil {
			if isName(entry) {
				err = errors.New("is a name; only addresses can be denied")
			}
			return nil, &EntryError{fmt.Sprintf("denyOut[%d]", i), entry, err}
		}
		p.Deny = append(p.Deny, rule)
		denied[rule] = true
	}
	deniesAll := !p.Internet || denied[Rule{Prefix: everything}]
	for i, entry := range r.AllowOut {
		if err := p.allow(entry, denied, deniesAll); err != nil {
			return nil, &EntryError{fmt.Sprintf("allowOut[%d]", i), entry, err}
		}
	}
	if _, err := p.entries(); err != nil {
		return nil, err
	}
	return p, nil
}

// allow adds one entry of allowOut.
func (p *Policy) allow(entry string, denied map[Rule]bool, deniesAll bool) error {
	if isName(entry) {
		name, err := parseName(entry)
		if err != nil {
			return err
		}
		if !deniesAll {
			return errors.New(`a name restricts nothing unless denyOut has "0.0.0.0/0"`)
		}
		p.Names = append(p.Names, name)
		return nil
	}
	rule, err := parseRule(entry)
	if err != nil {
		return err
	}
	if denied[rule] {
		return errors.New("is in denyOut as well")
	}
	p.Allow = append(p.Allow, rule)
	return nil
}

// isName tells a host name from an address: an address has no letter beyond f, or a colon.
func isName(entry string) bool {
	if strings.ContainsAny(entry, ":/ ") {
		return false
	}
	_, err := netip.ParseAddr(entry)
	return err != nil && strings.Trim(entry, "0123456789.") != ""
}

func parseRule(entry string) (Rule, error) {
	where, what, limited := strings.Cut(entry, " ")
	prefix, err := parsePrefix(where)
	if err != nil {
		return Rule{}, err
	}
	rule := Rule{Prefix: prefix}
	if limited {
		rule.Protocol, rule.Ports, err = parsePorts(what)
	}
	return rule, err
}

// parsePrefix reads an address or a CIDR. Bits behind the prefix are dropped, as everybody does.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, errors.New("is neither an address, a CIDR nor a name")
		}
		if addr.Zone() != "" {
			return netip.Prefix{}, errors.New("an address with a zone means nothing to a sandbox")
		}
		return checkFamily(netip.PrefixFrom(addr, addr.BitLen()))
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, errors.New("is not a CIDR such as 192.0.2.0/24")
	}
	return checkFamily(prefix)
}

func checkFamily(p netip.Prefix) (netip.Prefix, error) {
	if p.Addr().Is4In6() {
		return p, errors.New("write IPv4 addresses as such")
	}
	return p.Masked(), nil
}

// parsePorts reads "tcp", "tcp/443" or "tcp/8000-8100".
func parsePorts(s string) (Protocol, Ports, error) {
	name, ports, hasPorts := strings.Cut(s, "/")
	protocol, ok := map[string]Protocol{"tcp": TCP, "udp": UDP, "icmp": ICMP}[name]
	if !ok {
		return 0, Ports{}, fmt.Errorf("%q is none of tcp, udp and icmp", name)
	}
	if !hasPorts {
		return protocol, Ports{}, nil
	}
	if protocol == ICMP {
		return 0, Ports{}, errors.New("icmp has no ports")
	}
	from, to, isRange := strings.Cut(ports, "-")
	if !isRange {
		to = from
	}
	low, err1 := strconv.ParseUint(from, 10, 16)
	high, err2 := strconv.ParseUint(to, 10, 16)
	if err := errors.Join(err1, err2); err != nil || low == 0 || high < low {
		return 0, Ports{}, fmt.Errorf("%q is not a port from 1 to 65535 nor a range of them", ports)
	}
	return protocol, Ports{uint16(low), uint16(high)}, nil
}

// parseName checks a host name (RFC 1123) or a wildcard for everything below one, and returns it in lower case.
func parseName(s string) (string, error) {
	name := strings.TrimPrefix(s, "*.")
	if strings.HasSuffix(name, ".") {
		return "", errors.New("write names without the dot at the end")
	}
	if strings.Contains(name, "*") {
		return "", errors.New(`a wildcard stands only at the beginning, as in "*.example.org"`)
	}
	if len(name) > 253 {
		return "", errors.New("is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return "", err
		}
	}
	return strings.ToLower(s), nil
}

func checkLabel(label string) error {
	if label == "" || len(label) > 63 {
		return errors.New("each part of a name has 1 to 63 bytes")
	}
	for _, c := range label {
		if c > 127 {
			return errors.New(`write international names in their ASCII form ("xn--…")`)
		}
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return fmt.Errorf("%q can't be in a name", c)
		}
	}
	if label[0] == '-' || label[len(label)-1] == '-' {
		return errors.New("no part of a name begins or ends with a hyphen")
	}
	return nil
}
