package netvs

import "strings"

// MayResolve says whether the policy lets a sandbox ask for a name, given without a dot at the end. A question leaves
// the sandbox and may carry anything, so it is egress like any other: where everything is denied, only the names that
// the policy lists can be asked for.
func (p *Policy) MayResolve(name string) bool {
	if len(p.Names) == 0 {
		return p.Internet && !p.deniesAll()
	}
	if p.Internet && !p.deniesAll() {
		return true
	}
	name = strings.ToLower(name)
	if strings.Contains(name, `\`) {
		return false // an escaped dot would look like the end of a label
	}
	for _, pattern := range p.Names {
		if matchName(pattern, name) {
			return true
		}
	}
	return false
}

// matchName matches a name, in lower case, with a pattern of Policy.Names.
func matchName(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == name
	}
	return strings.HasSuffix(name, suffix) && len(name) > len(suffix)
}

// deniesAll says that whatever no rule allows is denied.
func (p *Policy) deniesAll() bool {
	for _, r := range p.Deny {
		if r.Prefix == everything && r.Protocol == AnyProtocol && r.Ports.isAll() {
			return true
		}
	}
	return false
}
