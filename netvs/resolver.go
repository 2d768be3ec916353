package netvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Resolver answers the guests' questions for names: each guest has the gateway as its only resolver, and the programs
// at the taps lead what it sends there to the host's resolver address. The sender's host-side address, which no guest
// can forge, says whose policy decides.
type Resolver struct {
	Network *Network
	// Upstream are the resolvers that are asked, one after the other. Empty means those of /etc/resolv.conf.
	Upstream []string
	// Refused is told of each name that a policy refused, if set.
	Refused func(sandbox, name string)
}

// Limits of the resolver.
const (
	upstreamTimeout = 3 * time.Second
	// maxQuestions is how many questions of one sandbox may be open at once.
	maxQuestions = 64
	// ednsBytes is the largest answer over UDP that needs no fragments on common paths (DNS flag day 2020).
	ednsBytes = 1232
)

// Run serves over UDP and TCP until ctx ends.
func (r *Resolver) Run(ctx context.Context) error {
	if len(r.Upstream) == 0 {
		conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil {
			return fmt.Errorf("find the host's resolvers: %w", err)
		}
		for _, s := range conf.Servers {
			r.Upstream = append(r.Upstream, net.JoinHostPort(s, conf.Port))
		}
	}
	addr := net.JoinHostPort(r.Network.cfg.resolver().String(), "53")
	packets, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return fmt.Errorf("serve names: %w", err)
	}
	listener, err := net.Listen("tcp4", addr)
	if err != nil {
		return errors.Join(fmt.Errorf("serve names: %w", err), packets.Close())
	}
	servers := []*dns.Server{{PacketConn: packets, Handler: r}, {Listener: listener, Handler: r, MaxTCPQueries: 128}}
	var running sync.WaitGroup
	ended := make(chan error, len(servers))
	for _, s := range servers {
		running.Go(func() { ended <- s.ActivateAndServe() })
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-ended:
		err = fmt.Errorf("serve names: %w", err)
	}
	packets.Close()
	listener.Close()
	running.Wait()
	return err
}

// ServeDNS answers one question.
func (r *Resolver) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	from, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil {
		return
	}
	reply := r.answer(r.Network.sandboxAt(from.Addr().Unmap()), question)
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		reply.Truncate(udpSize(question))
	}
	if err := w.WriteMsg(reply); err != nil {
		slog.Debug("could not answer a sandbox's question", "to", from, "error", err)
	}
}

func udpSize(question *dns.Msg) int {
	if opt := question.IsEdns0(); opt != nil {
		return int(min(max(opt.UDPSize(), dns.MinMsgSize), ednsBytes))
	}
	return dns.MinMsgSize
}

// answer decides and, if the policy lets it, asks.
func (r *Resolver) answer(s *Sandbox, question *dns.Msg) *dns.Msg {
	if s == nil {
		return failure(question, dns.RcodeRefused)
	}
	if question.Opcode != dns.OpcodeQuery {
		return failure(question, dns.RcodeNotImplemented)
	}
	if len(question.Question) != 1 || question.Question[0].Qclass != dns.ClassINET {
		return failure(question, dns.RcodeRefused)
	}
	q := question.Question[0]
	name := strings.TrimSuffix(strings.ToLower(q.Name), ".")
	if !s.Policy().MayResolve(name) || !answerable(q.Qtype) {
		s.questions.refused.Add(1)
		if r.Refused != nil {
			r.Refused(s.ID, name)
		}
		return failure(question, dns.RcodeRefused)
	}
	if withoutRecords(q.Qtype) {
		return failure(question, dns.RcodeSuccess)
	}
	if s.questions.open.Add(1) > maxQuestions {
		s.questions.open.Add(-1)
		return failure(question, dns.RcodeServerFailure)
	}
	defer s.questions.open.Add(-1)
	upstream, err := r.ask(q)
	if err != nil {
		slog.Warn("no resolver answers", "sandbox", s.ID, "error", err)
		return failure(question, dns.RcodeServerFailure)
	}
	reply := clean(question, upstream)
	addrs, ttl := addresses(reply)
	if err := s.pin(name, addrs, ttl); err != nil {
		slog.Error("an answer's addresses could not be let through", "sandbox", s.ID, "name", name, "error", err)
		return failure(question, dns.RcodeServerFailure)
	}
	s.questions.answered.Add(1)
	return reply
}

// questions counts what a sandbox asked.
type questions struct {
	open              atomic.Int64
	answered, refused atomic.Uint64
}

// answerable leaves out what moves whole zones or any record there is.
func answerable(qtype uint16) bool {
	switch qtype {
	case dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB, dns.TypeNULL:
		return false
	}
	return true
}

// withoutRecords are types that no sandbox has a use for: it has no IPv6 (docs/decisions), and the addresses inside of
// service bindings would not be pinned.
func withoutRecords(qtype uint16) bool {
	return qtype == dns.TypeAAAA || qtype == dns.TypeHTTPS || qtype == dns.TypeSVCB
}

// failure is an answer without records.
func failure(question *dns.Msg, rcode int) *dns.Msg {
	m := new(dns.Msg).SetRcode(question, rcode)
	m.RecursionAvailable = true
	return m
}

// ask asks the upstream resolvers in turn, over TCP where an answer does not fit into a datagram. Nothing of the
// guest's message but the question is passed on.
func (r *Resolver) ask(q dns.Question) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(q.Name, q.Qtype)
	m.SetEdns0(ednsBytes, false)
	var errs []error
	for _, server := range r.Upstream {
		reply, err := exchange("udp", server, m)
		if err == nil && reply.Truncated {
			reply, err = exchange("tcp", server, m)
		}
		if err == nil && reply.Rcode != dns.RcodeServerFailure {
			return reply, nil
		}
		if err == nil {
			err = errors.New("it failed")
		}
		errs = append(errs, fmt.Errorf("ask %s for %s: %w", server, q.Name, err))
	}
	return nil, errors.Join(errs...)
}

func exchange(network, server string, m *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: upstreamTimeout, UDPSize: ednsBytes}
	reply, _, err := c.Exchange(m, server)
	return reply, err
}

// clean builds the answer from what was asked for: the chain of aliases that begins at the name, and the records at
// its end. Whatever else an upstream put into its message stays out.
func clean(question, upstream *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetRcode(question, upstream.Rcode)
	reply.RecursionAvailable = true
	q := question.Question[0]
	at := q.Name
	for range len(upstream.Answer) + 1 {
		alias := ""
		for _, rr := range upstream.Answer {
			h := rr.Header()
			if !strings.EqualFold(h.Name, at) || h.Class != dns.ClassINET {
				continue
			}
			if h.Rrtype == q.Qtype {
				reply.Answer = append(reply.Answer, rr)
			} else if c, ok := rr.(*dns.CNAME); ok && alias == "" {
				reply.Answer = append(reply.Answer, rr)
				alias = c.Target
			}
		}
		if alias == "" {
			break
		}
		at = alias
	}
	for _, rr := range upstream.Ns {
		if rr.Header().Rrtype == dns.TypeSOA && len(reply.Answer) == 0 {
			reply.Ns = append(reply.Ns, rr) // how long "no" holds
		}
	}
	return reply
}

// addresses returns the IPv4 addresses of an answer and the shortest time any of its records holds.
func addresses(reply *dns.Msg) ([]netip.Addr, time.Duration) {
	var out []netip.Addr
	ttl := maxPin
	for _, rr := range reply.Answer {
		ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
		if a, ok := rr.(*dns.A); ok {
			if addr, ok := netip.AddrFromSlice(a.A.To4()); ok {
				out = append(out, addr)
			}
		}
	}
	return out, ttl
}
