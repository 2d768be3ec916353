package node

import (
	"log/slog"
	"sync"
	"time"

	"cella.dev/cella/node/worker"
	"cella.dev/cella/vmm"
)

// poolDecay is how long a pool stays larger than its minimum without demand.
const poolDecay = 30 * time.Second

// pools keep started workers for each machine shape, so that a create pays neither for a process nor for
// its KVM objects.
type pools struct {
	min, max int
	log      *slog.Logger

	mu      sync.Mutex // guards byShape and closed
	byShape map[vmm.Shape]*pool
	closed  bool
	wg      sync.WaitGroup
}

func newPools(min, max int, log *slog.Logger) *pools {
	return &pools{min: min, max: max, log: log, byShape: make(map[vmm.Shape]*pool)}
}

// prepare begins to keep workers of a shape.
func (p *pools) prepare(shape vmm.Shape) {
	if p.max > 0 {
		p.of(shape)
	}
}

// claim returns a worker of the shape: a pooled one, or one just started where the pool is empty.
func (p *pools) claim(shape vmm.Shape) (*worker.Worker, error) {
	if p.max == 0 {
		return worker.Start(shape)
	}
	if w := p.of(shape).take(); w != nil {
		return w, nil
	}
	return worker.Start(shape)
}

func (p *pools) of(shape vmm.Shape) *pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, ok := p.byShape[shape]
	if !ok {
		q = &pool{shape: shape, min: p.min, max: p.max, want: p.min, log: p.log, wake: make(chan struct{}, 1), stop: make(chan struct{})}
		p.byShape[shape] = q
		if !p.closed {
			p.wg.Go(q.run)
		}
	}
	return q
}

// close kills all pooled workers and waits for them.
func (p *pools) close() {
	p.mu.Lock()
	p.closed = true
	for _, q := range p.byShape {
		close(q.stop)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// pool keeps between min and max workers of one shape ready: an empty pool doubles what it wants, a quiet
// one halves it.
type pool struct {
	shape    vmm.Shape
	min, max int
	log      *slog.Logger
	wake     chan struct{} // a worker was taken
	stop     chan struct{}

	mu   sync.Mutex // guards idle and want
	idle []*worker.Worker
	want int
}

// take returns a worker that is alive, or nil.
func (q *pool) take() *worker.Worker {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.nudge()
	for len(q.idle) > 0 {
		w := q.idle[0]
		q.idle = q.idle[1:]
		select {
		case <-w.Done():
			q.log.Warn("a pooled worker died", "error", w.Err())
		default:
			return w
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

// run fills the pool one worker at a time: starting many at once would take the processors from creates.
func (q *pool) run() {
	quiet := time.NewTicker(poolDecay)
	defer quiet.Stop()
	backoff := time.Duration(0)
	for {
		if q.missing() && backoff == 0 {
			err := q.add()
			select {
			case <-q.stop:
				q.drain()
				return
			default:
			}
			if err != nil {
				q.log.Error("cannot start a worker for the pool", "error", err)
				backoff = time.Second
			}
			continue
		}
		var retry <-chan time.Time
		if backoff > 0 {
			retry = time.After(backoff)
		}
		select {
		case <-q.stop:
			q.drain()
			return
		case <-q.wake:
		case <-retry:
			backoff = 0
		case <-quiet.C:
			q.shrink()
		}
	}
}

func (q *pool) missing() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.idle) < q.want
}

func (q *pool) add() error {
	w, err := worker.Start(q.shape)
	if err != nil {
		return err
	}
	if err := w.WaitReady(q.stop); err != nil {
		w.Kill()
		<-w.Done()
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, w)
	return nil
}

// shrink lets go of half of what is above the minimum.
func (q *pool) shrink() {
	q.mu.Lock()
	q.want = max(q.min, q.want/2)
	var extra []*worker.Worker
	if n := len(q.idle) - q.want; n > 0 {
		extra, q.idle = q.idle[:n], q.idle[n:]
	}
	q.mu.Unlock()
	for _, w := range extra {
		w.Kill()
	}
}

func (q *pool) drain() {
	q.mu.Lock()
	idle := q.idle
	q.idle = nil
	q.mu.Unlock()
	for _, w := range idle {
		w.Kill()
	}
	for _, w := range idle {
		<-w.Done()
	}
}
