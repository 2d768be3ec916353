package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cella.dev/cella/netvs"
	"cella.dev/cella/node/worker"
)

// NetworkMode says whether sandboxes get a network.
type NetworkMode string

// Network modes. Without a network sandboxes reach nothing, and all else works: they are reached by vsock.
const (
	NetworkOff  NetworkMode = ""
	NetworkAuto NetworkMode = "auto" // where this host can do it, see Node.NoNetwork
	NetworkOn   NetworkMode = "on"   // Open fails where it can't
)

// NetworkPolicy is what a sandbox may reach, in the E2B API's words: addresses, CIDRs and, in AllowOut, names.
type NetworkPolicy struct {
	AllowOut, DenyOut []string
}

func (p NetworkPolicy) clone() NetworkPolicy {
	return NetworkPolicy{slices.Clone(p.AllowOut), slices.Clone(p.DenyOut)}
}

// parsePolicy checks a policy whole; the error wraps ErrPolicy and names the entry.
func parsePolicy(internet *bool, p NetworkPolicy) (*netvs.Policy, error) {
	parsed, err := netvs.Request{AllowInternetAccess: internet, AllowOut: p.AllowOut, DenyOut: p.DenyOut}.Policy()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	return parsed, nil
}

// network is the host's part of the sandboxes' network.
type network struct {
	*netvs.Network
	lock    net.Listener
	pins    string
	stop    context.CancelFunc
	serving sync.WaitGroup // resolver and log
}

// openNetwork takes the network into use. Sandboxes of a former process are gone, so what is left of their network
// goes too.
func openNetwork(opts Options) (*network, error) {
	cfg := opts.Egress
	if cfg.PinDir == "" {
		cfg.PinDir = filepath.Join(opts.Run, "bpf")
	}
	lock, err := lockNetwork(cfg)
	if err != nil {
		return nil, err
	}
	vs, err := netvs.Open(cfg)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	n := &network{Network: vs, lock: lock, pins: cfg.PinDir}
	if err := vs.Sweep(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	resolver := netvs.Resolver{Network: vs, Upstream: opts.Resolvers, Refused: func(sandbox, name string) {
		opts.Logger.Info("name refused", "sandbox", sandbox, "name", name)
	}}
	n.serving.Go(func() {
		if err := resolver.Run(ctx); err != nil {
			opts.Logger.Error("sandboxes can't resolve names", "error", err)
		}
	})
	n.serving.Go(func() {
		if err := vs.Events(logDenied(opts.Logger)); !errors.Is(err, netvs.ErrClosed) {
			opts.Logger.Error("denied packets are only counted from now on", "error", err)
		}
	})
	return n, nil
}

func logDenied(log *slog.Logger) func(netvs.Denied) {
	return func(d netvs.Denied) {
		log.Info("packet denied", "sandbox", d.Sandbox, "reason", d.Reason, "protocol", d.Protocol, "to", d.To, "bytes", d.Bytes)
	}
}

// lockNetwork keeps two processes from using the same taps. The name is an abstract socket's: each network namespace
// has its own, and it is free when its process ends.
func lockNetwork(cfg netvs.Config) (net.Listener, error) {
	l, err := net.Listen("unix", "@cella-network-"+cfg.TapPrefix)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another cella on this host has the sandboxes' network: stop it, or go without")
	}
	if err != nil {
		return nil, fmt.Errorf("lock the sandboxes' network: %w", err)
	}
	return l, nil
}

// close takes everything of the network off the host. No sandbox uses it any more.
func (n *network) close() error {
	if n.stop != nil {
		n.stop()
	}
	err := n.Network.Remove()
	n.serving.Wait()
	if e := unix.Unmount(n.pins, 0); e != nil && e != unix.EINVAL {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", n.pins, e))
	}
	if e := os.Remove(n.pins); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, n.lock.Close())
}

// NoNetwork says why sandboxes of this node have no network; nil if they have one.
func (n *Node) NoNetwork() error { return n.noNetwork }

// setUpNetwork does what Options.Network says.
func (n *Node) setUpNetwork() (err error) {
	if n.opts.Network == NetworkOff {
		n.noNetwork = fmt.Errorf("%w: it is switched off", ErrNoNetwork)
		return nil
	}
	if n.network, err = openNetwork(n.opts); err == nil {
		return nil
	}
	if n.opts.Network == NetworkOn {
		return err
	}
	n.noNetwork = fmt.Errorf("%w: %w", ErrNoNetwork, err)
	n.log.Warn("sandboxes have no network on this host (cella doctor says more)", "reason", err)
	return nil
}

// connect gives a sandbox its part of the network, which passes nothing yet. A template without a card stays without.
func (n *Node) connect(s *sandbox, t *template) (worker.Network, error) {
	if t.Card == nil || n.network == nil {
		return worker.Network{Card: t.Card}, nil
	}
	var err error
	if s.egress, err = n.network.Attach(s.ID, &netvs.Policy{}); err != nil {
		if errors.Is(err, netvs.ErrFull) {
			err = fmt.Errorf("%w: %w", ErrCapacity, err)
		}
		return worker.Network{}, err
	}
	return worker.Network{Card: t.Card, Tap: s.egress.File()}, nil
}

// disconnect takes the network from a sandbox whose machine has ended.
func (n *Node) disconnect(s *sandbox) {
	if s.egress == nil {
		return
	}
	if err := s.egress.Close(); err != nil {
		n.log.Error("take the network from a sandbox", "sandbox", s.ID, "error", err)
	}
}

// checkNetwork refuses a request for access that can't be given. To be denied everything is granted everywhere.
func (n *Node) checkNetwork(t *template, p NetworkPolicy) error {
	if len(p.AllowOut) == 0 {
		return nil
	}
	if n.network == nil {
		return n.noNetwork
	}
	if t.Card == nil {
		return fmt.Errorf("%w: template %s has no network card; build it again", ErrNoNetwork, t.Alias)
	}
	return nil
}

// SetNetwork replaces what a sandbox may reach, as a whole and at once; on an error the old policy stays. Errors wrap
// ErrNotFound, ErrPolicy or ErrNoNetwork. internet is nil where the caller did not say, which means yes.
func (n *Node) SetNetwork(id string, internet *bool, p NetworkPolicy) error {
	parsed, err := parsePolicy(internet, p)
	if err != nil {
		return err
	}
	s, err := n.running(id)
	if err != nil {
		return err
	}
	if s.egress == nil {
		if n.network == nil {
			return n.noNetwork
		}
		return fmt.Errorf("%w: template %s has no network card; build it again", ErrNoNetwork, s.Alias)
	}
	s.policyMu.Lock()
	defer s.policyMu.Unlock()
	if err := s.egress.SetPolicy(parsed); errors.Is(err, netvs.ErrClosed) {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	} else if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.AllowInternet, s.Network = internet, p.clone()
	return nil
}
