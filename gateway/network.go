package gateway

import (
	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// networkBody is the contract's network settings. What is not offered is there to be refused.
type networkBody struct {
	AllowOut           []string       `json:"allowOut,omitempty"`
	DenyOut            []string       `json:"denyOut,omitempty"`
	AllowPublicTraffic *bool          `json:"allowPublicTraffic,omitempty"`
	MaskRequestHost    *string        `json:"maskRequestHost,omitempty"`
	EgressProxy        map[string]any `json:"egressProxy,omitempty"`
	Rules              map[string]any `json:"rules,omitempty"`
	HTTPSPorts         []any          `json:"httpsPorts,omitempty"`
}

// restricts reports whether the settings ask for more than egress rules.
func (b *networkBody) restricts() bool {
	return b.AllowPublicTraffic != nil && !*b.AllowPublicTraffic || b.MaskRequestHost != nil || len(b.EgressProxy) > 0 ||
		len(b.Rules) > 0 || len(b.HTTPSPorts) > 0
}

func (b *networkBody) policy() node.NetworkPolicy {
	return node.NetworkPolicy{AllowOut: b.AllowOut, DenyOut: b.DenyOut}
}

// network is what GET tells of a sandbox's egress rules; nil if it has none.
func network(p node.NetworkPolicy) *networkBody {
	if len(p.AllowOut)+len(p.DenyOut) == 0 {
		return nil
	}
	return &networkBody{AllowOut: p.AllowOut, DenyOut: p.DenyOut}
}

// setNetwork replaces the rules as a whole: what the body leaves out is cleared.
func setNetwork(s *Server, r *request) error {
	var body struct {
		networkBody
		AllowInternetAccess *bool `json:"allow_internet_access"`
	}
	if _, err := decode(r.RequestCtx, &body); err != nil {
		return err
	}
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	if body.restricts() {
		return errorf(fasthttp.StatusNotImplemented, "network: only allowOut, denyOut and allow_internet_access are offered by this server")
	}
	if err := s.node.SetNetwork(sb.ID, body.AllowInternetAccess, body.policy()); err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}
