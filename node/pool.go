package node

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/internal/agentrpc"
)

const (
	// poolDecay is how long a pool stays larger than its minimum without demand.
	poolDecay = 30 * time.Second
	// poolRetry is how long a pool waits after a failure.
	poolRetry = time.Second
)

// pool keeps sandboxes of one template ready that belong to nobody yet: restored and running, with the pages that
// the agent and a first command touch already their own. What is left for a create is the handshake, which gives
// the sandbox its identity, clock and random numbers.
//
// An empty pool doubles the number it wants, up to a maximum; a quiet one halves it.
type pool struct {
	min, max int
	prepare  func(context.Context) (*sandbox, error)
	// creating counts the creates under way or just done on the node. While they need all processors the pool
	// stands back.
	creating *atomic.Int64
	log      *slog.Logger

	wake   chan struct{} // something has changed that may let the pool grow
	cancel context.CancelFunc
	ended  chan struct{}

	mu   sync.Mutex // guards idle and want
	idle []*sandbox
	want int
}

// startPool begins to fill a pool.
func (n *Node) startPool(t *template) *pool {
	ctx, cancel := context.WithCancel(context.Background())
	q := &pool{
		min: min(n.opts.PoolMin, n.opts.PoolMax), max: n.opts.PoolMax, want: min(n.opts.PoolMin, n.opts.PoolMax),
		prepare:  func(ctx context.Context) (*sandbox, error) { return n.prepareSpare(ctx, t) },
		creating: &n.creating, log: n.log,
		wake: make(chan struct{}, 1), cancel: cancel, ended: make(chan struct{}),
	}
	go q.run(ctx)
	return q
}

// take returns a sandbox that is alive, or nil.
func (q *pool) take() *sandbox {
	if q.max == 0 {
		return nil
	}
	defer q.nudge()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.idle) > 0 {
		s := q.idle[0]
		q.idle = q.idle[1:]
		select {
		case <-s.worker.Done():
			q.log.Warn("a sandbox of the pool has died", "error", s.worker.Err())
		default:
			return s
		}
	}
	q.want = min(max(q.want*2, 1), q.max)
	return nil
}

func (q *pool) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close ends all that the pool holds. Their workers are reaped by the node.
func (q *pool) close() {
	q.cancel()
	<-q.ended
}

func (q *pool) run(ctx context.Context) {
	defer close(q.ended)
	defer q.drain()
	quiet := time.NewTicker(poolDecay)
	defer quiet.Stop()
	for ctx.Err() == nil {
		var retry <-chan time.Time
		if q.mayGrow() {
			s, err := q.prepare(ctx)
			if err == nil {
				q.put(s)
				continue
			}
			if ctx.Err() != nil {
				return
			}
			q.log.Error("cannot prepare a sandbox for the pool", "error", err)
			retry = time.After(poolRetry)
		}
		select {
		case <-ctx.Done():
		case <-retry:
		case <-q.wake:
		case <-quiet.C:
			q.shrink()
		}
	}
}

func (q *pool) mayGrow() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.idle) < q.want && q.creating.Load() < int64(runtime.NumCPU())
}

func (q *pool) put(s *sandbox) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, s)
}

// shrink lets go of half of what is above the minimum.
func (q *pool) shrink() {
	q.mu.Lock()
	q.want = max(q.min, q.want/2)
	var extra []*sandbox
	if n := len(q.idle) - q.want; n > 0 {
		extra, q.idle = q.idle[:n], q.idle[n:]
	}
	q.mu.Unlock()
	for _, s := range extra {
		s.retire()
	}
}

func (q *pool) drain() {
	q.mu.Lock()
	idle := q.idle
	q.idle = nil
	q.mu.Unlock()
	for _, s := range idle {
		s.retire()
	}
}

// spareCommand is run once in every prepared sandbox, so that the first command of its user does not pay for
// copying the pages that any shell writes.
const spareCommand = "true"

// prepareSpare makes a sandbox up to where its user comes in. Nobody can reach it: its access token is random and
// its ID in no table.
func (n *Node) prepareSpare(ctx context.Context, t *template) (*sandbox, error) {
	if err := n.enter(); err != nil {
		return nil, err
	}
	defer n.busy.Done()
	ctx, cancel := context.WithTimeout(ctx, n.opts.CreateTimeout)
	defer cancel()
	s, err := n.start(ctx, t, false, newStopwatch())
	if err != nil {
		return nil, err
	}
	if err := n.warm(ctx, s, t); err != nil {
		s.retire()
		return nil, err
	}
	return s, nil
}

func (n *Node) warm(ctx context.Context, s *sandbox, t *template) error {
	s.AccessToken = randomID(32)
	if _, err := control(ctx, s.socket, wire.ControlRequest{Op: wire.OpInit, Init: newInit(s, t, nil)}); err != nil {
		return s.orExit(err)
	}
	conn, err := s.dialPort(ctx, wire.PortAgent, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := agentrpc.Shell(spareCommand)
	c.Token = s.AccessToken
	_, err = agentrpc.Run(ctx, conn, c, agentrpc.Output{Stdout: io.Discard, Stderr: io.Discard})
	return err
}
