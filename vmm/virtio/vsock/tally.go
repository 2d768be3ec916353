package vsock

import (
	"context"
	"fmt"
	"sync"
)

// tally counts connections from the moment a client is accepted until both ends are done with it.
type tally struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to 0; nil unless somebody waits
}

func (t *tally) add(delta int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += delta
	if t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// addBelow counts one more if there are fewer than limit.
func (t *tally) addBelow(limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= limit {
		return false
	}
	t.n++
	return true
}

func (t *tally) get() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until no vsock connection is open, %d are: %w", t.get(), ctx.Err())
	}
}

// Connections is how many connections are open, counting clients that still wait for an answer and
// connections whose end the guest hasn't confirmed.
func (d *Device) Connections() int { return d.open.get() }

// WaitIdle waits until no connection is open.
func (d *Device) WaitIdle(ctx context.Context) error { return d.open.wait(ctx) }
