package process

import (
	"sync"
	"time"

	"cella.dev/cella/guest/agent/e2b"
)

// subscriberQueue is how many chunks wait for one subscriber: with 32 KiB chunks, at most half a MiB.
const subscriberQueue = 16

// A subscriber receives a process's output.
type subscriber struct {
	events chan *e2b.EventResponse
	// gone is closed by the subscriber when it leaves, cut by the fan-out when it is too slow.
	gone, cut chan struct{}
	// owner marks the call whose deadline is the process's.
	owner bool
}

func newSubscriber() *subscriber {
	return &subscriber{
		events: make(chan *e2b.EventResponse, subscriberQueue),
		gone:   make(chan struct{}),
		cut:    make(chan struct{}),
	}
}

// A fanout copies output to all subscribers. Output that nobody subscribed to is dropped. A subscriber
// that reads slowly slows the process down, as a pipe would; one that doesn't read at all for stall is
// cut off, so that an abandoned connection can't stop a process for good.
type fanout struct {
	stall time.Duration

	mu   sync.Mutex
	subs map[*subscriber]bool
	done bool
}

// subscribe adds sub, or closes its events at once if the process has ended.
func (f *fanout) subscribe(sub *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		close(sub.events)
		return
	}
	if f.subs == nil {
		f.subs = map[*subscriber]bool{}
	}
	f.subs[sub] = true
}

// leave removes sub; its own goroutine calls it, once.
func (f *fanout) leave(sub *subscriber) {
	close(sub.gone)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.subs, sub)
}

// idle says whether nobody listens, so that output need not even be copied.
func (f *fanout) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs) == 0
}

// publish hands an event to every subscriber.
func (f *fanout) publish(ev *e2b.EventResponse) {
	f.mu.Lock()
	subs := make([]*subscriber, 0, len(f.subs))
	for sub := range f.subs {
		subs = append(subs, sub)
	}
	f.mu.Unlock()
	for _, sub := range subs {
		select {
		case sub.events <- ev:
		default:
			f.wait(sub, ev)
		}
	}
}

// wait gives a full subscriber time to read.
func (f *fanout) wait(sub *subscriber, ev *e2b.EventResponse) {
	timer := time.NewTimer(f.stall)
	defer timer.Stop()
	select {
	case sub.events <- ev:
	case <-sub.gone:
	case <-sub.cut:
	case <-timer.C:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.subs[sub] {
			delete(f.subs, sub)
			close(sub.cut)
		}
	}
}

// finish tells every subscriber that nothing follows. All publishers must have returned.
func (f *fanout) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	for sub := range f.subs {
		close(sub.events)
	}
	f.subs = nil
}
