package files

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"sync"
	"time"

	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

const (
	// maxWatchers bounds the watchers that are polled; a client that forgets its own can't fill memory.
	maxWatchers = 256
	// maxPending bounds the events that wait for one poll.
	maxPending = 10_000
)

// watchDir streams changes: start when the watch is in place, then events.
func (s *Service) watchDir(r *http.Request, call *rpc.Call, req *e2b.WatchRequest, out *rpc.Sender[e2b.WatchEvent]) error {
	_, path, err := s.resolve(call, req.Path)
	if err != nil {
		return err
	}
	t, err := s.openTree(path, req)
	if err != nil {
		return err
	}
	defer t.close()
	ctx := r.Context()
	if call.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, call.Timeout)
		defer cancel()
	}
	stream := &watchStream{out: out, interval: call.KeepAlive()}
	if err := stream.send(&e2b.WatchEvent{Start: &e2b.WatchStart{}}); err != nil {
		return err
	}
	stop := stream.keepAlive()
	defer stop()
	err = t.run(ctx.Done(), func(ev *e2b.FilesystemEvent) error {
		return stream.send(&e2b.WatchEvent{Filesystem: ev})
	})
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// A watchStream shares one sender between events and keepalives.
type watchStream struct {
	interval time.Duration
	timer    *time.Timer

	mu   sync.Mutex // guards out and done
	out  *rpc.Sender[e2b.WatchEvent]
	done bool
}

func (w *watchStream) send(ev *e2b.WatchEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return context.Canceled
	}
	if w.timer != nil {
		w.timer.Reset(w.interval)
	}
	if err := w.out.Send(ev); err != nil {
		return err
	}
	return w.out.Flush()
}

// keepAlive pings whenever the stream has been idle for the interval, until stop is called.
func (w *watchStream) keepAlive() (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.interval, func() {
		w.send(&e2b.WatchEvent{KeepAlive: &e2b.KeepAlive{}}) // a client that left ends the stream anyway
	})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done = true
		w.timer.Stop()
	}
}

// watchers are those whose events are polled.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*polledWatcher
}

// A polledWatcher keeps events until they are asked for.
type polledWatcher struct {
	tree *tree
	stop chan struct{}

	mu      sync.Mutex
	pending []*e2b.FilesystemEvent
	// err is why the watcher has stopped.
	err error
}

func (s *Service) createWatcher(_ *http.Request, call *rpc.Call, req *e2b.WatchRequest) (*e2b.WatcherID, error) {
	_, path, err := s.resolve(call, req.Path)
	if err != nil {
		return nil, err
	}
	t, err := s.openTree(path, req)
	if err != nil {
		return nil, err
	}
	w := &polledWatcher{tree: t, stop: make(chan struct{})}
	id := "w" + rand.Text()
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	if len(s.watchers.byID) >= maxWatchers {
		t.close()
		return nil, rpc.Errorf(rpc.ResourceExhausted, "%d watchers exist already; remove some", maxWatchers)
	}
	s.watchers.byID[id] = w
	go w.collect()
	return &e2b.WatcherID{WatcherID: id}, nil
}

// collect keeps events until the watcher is stopped or too many wait.
func (w *polledWatcher) collect() {
	defer w.tree.close()
	err := w.tree.run(w.stop, func(ev *e2b.FilesystemEvent) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.pending) >= maxPending {
			return rpc.Errorf(rpc.ResourceExhausted, "more than %s events between two polls", strconv.Itoa(maxPending))
		}
		w.pending = append(w.pending, ev)
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (s *Service) watcher(id string) (*polledWatcher, error) {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	if w, ok := s.watchers.byID[id]; ok {
		return w, nil
	}
	return nil, rpc.Errorf(rpc.NotFound, "watcher with id %s not found", id)
}

func (s *Service) getWatcherEvents(_ *http.Request, _ *rpc.Call, req *e2b.WatcherID) (*e2b.WatcherEvents, error) {
	w, err := s.watcher(req.WatcherID)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) == 0 && w.err != nil {
		return nil, w.err
	}
	res := &e2b.WatcherEvents{Events: w.pending}
	w.pending = nil
	return res, nil
}

func (s *Service) removeWatcher(_ *http.Request, _ *rpc.Call, req *e2b.WatcherID) (*e2b.Empty, error) {
	w, err := s.watcher(req.WatcherID)
	if err != nil {
		return nil, err
	}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	if s.watchers.byID[req.WatcherID] == w {
		delete(s.watchers.byID, req.WatcherID)
		close(w.stop)
	}
	return &e2b.Empty{}, nil
}
