package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/node/worker"
)

// sandbox is a Sandbox and what runs it. Its Sandbox fields are guarded by Node.mu once it is in the table;
// the rest never changes.
type sandbox struct {
	Sandbox
	worker *worker.Worker
	socket string      // the worker's vsock listener
	expiry *time.Timer // fires at EndAt
}

// copy returns the public half. The caller holds Node.mu.
func (s *sandbox) copy() Sandbox {
	c := s.Sandbox
	c.Metadata = maps.Clone(c.Metadata)
	c.Phases = slices.Clone(c.Phases)
	return c
}

// Create makes a sandbox from a template and returns when user code can run in it. On any error nothing of
// it is left.
func (n *Node) Create(ctx context.Context, req CreateRequest) (Sandbox, error) {
	t, err := n.acquire(req.Template)
	if err != nil {
		return Sandbox{}, err
	}
	defer t.users.Done()
	if err := n.enter(); err != nil {
		return Sandbox{}, err
	}
	defer n.busy.Done()
	ctx, cancel := context.WithTimeout(ctx, n.opts.CreateTimeout)
	defer cancel()
	s := &sandbox{Sandbox: Sandbox{
		ID: "i" + randomID(20), TemplateID: t.ID, Alias: t.Alias, Team: req.Team, State: StateRunning,
		CPUCount: t.CPUCount, MemoryMB: t.MemoryMB, DiskSizeMB: t.DiskSizeMB,
		AllowInternet: req.AllowInternet, Metadata: maps.Clone(req.Metadata),
	}}
	s.socket = filepath.Join(n.opts.Run, s.ID+".sock")
	if req.Secure {
		s.AccessToken = randomID(32)
	}
	if err := n.launch(ctx, s, t, req); err != nil {
		if s.worker != nil {
			s.retire()
		}
		return Sandbox{}, fmt.Errorf("create sandbox from %s: %w", t.Alias, err)
	}
	return n.admit(s, req.Timeout)
}

// enter counts a caller that makes processes, which Close waits for, unless the node is closing.
func (n *Node) enter() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("%w: the node is closing", ErrCapacity)
	}
	n.busy.Add(1)
	return nil
}

// launch takes a sandbox from nothing to an agent that has answered.
func (n *Node) launch(ctx context.Context, s *sandbox, t *template, req CreateRequest) (err error) {
	clock := newStopwatch()
	if s.worker, err = n.pools.claim(t.shape()); err != nil {
		return err
	}
	n.busy.Go(func() { n.watch(s) })
	clock.lap("claim")
	disk, err := n.disks.Clone(t.disk)
	if err != nil {
		return err
	}
	defer disk.Close()
	clock.lap("disk")
	listener, err := listenVsock(s.socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	init := func() wire.ControlRequest {
		return wire.ControlRequest{Op: wire.OpInit, Init: newInit(s, t, req.Env)}
	}
	var reply wire.ControlReply
	if req.Cold {
		if err := bootTemplate(ctx, s.worker, t.dir, disk, listener, nil); err != nil {
			return err
		}
		clock.lap("boot")
		reply, err = controlBooting(ctx, s.socket, init)
	} else {
		files := worker.RestoreFiles{State: t.snapshot.State, Memory: t.snapshot.Memory, Disk: disk, Listener: listener}
		if _, err := s.worker.Restore(ctx, files); err != nil {
			return err
		}
		clock.lap("restore")
		reply, err = control(ctx, s.socket, init())
	}
	if err != nil {
		return s.orExit(err)
	}
	clock.lap("handshake")
	s.AgentVersion, s.Phases = reply.Version, clock.phases
	return nil
}

// admit puts a launched sandbox into the table; its time to live begins now.
func (n *Node) admit(s *sandbox, ttl time.Duration) (Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		s.retire()
		return Sandbox{}, fmt.Errorf("%w: the node is closing", ErrCapacity)
	}
	s.StartedAt = time.Now()
	s.EndAt = s.StartedAt.Add(ttl)
	s.expiry = time.AfterFunc(ttl, func() { n.expire(s) })
	n.sandboxes[s.ID] = s
	return s.copy(), nil
}

// watch waits until a worker has been reaped, and forgets its sandbox if the machine ended by itself.
func (n *Node) watch(s *sandbox) {
	<-s.worker.Done()
	os.Remove(s.socket)
	if n.forget(s) {
		n.log.Warn("sandbox ended", "sandbox", s.ID, "reason", s.worker.Err())
	}
}

// forget takes a sandbox out of the table; it reports whether this call did.
func (n *Node) forget(s *sandbox) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sandboxes[s.ID] != s {
		return false
	}
	delete(n.sandboxes, s.ID)
	s.expiry.Stop()
	return true
}

// expire kills a sandbox at its end of life. A timeout that was extended in the very moment wins.
func (n *Node) expire(s *sandbox) {
	n.mu.Lock()
	if left := time.Until(s.EndAt); left > 0 {
		s.expiry.Reset(left)
		n.mu.Unlock()
		return
	}
	mine := n.sandboxes[s.ID] == s
	delete(n.sandboxes, s.ID)
	n.mu.Unlock()
	if mine {
		n.log.Info("sandbox reached its end of life", "sandbox", s.ID)
		s.retire()
	}
}

// Kill ends a sandbox. It is gone from every list when Kill returns; its process is reaped after.
func (n *Node) Kill(_ context.Context, id string) error {
	s, err := n.running(id)
	if err != nil {
		return err
	}
	if !n.forget(s) {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	s.retire()
	return nil
}

// retire ends a worker without waiting for it (tearing down a machine takes milliseconds); watch reaps it.
func (s *sandbox) retire() {
	os.Remove(s.socket)
	s.worker.Kill()
}

func (n *Node) running(id string) (*sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.sandboxes[id]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return s, nil
}

// Get returns one sandbox; the error wraps ErrNotFound.
func (n *Node) Get(id string) (Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.sandboxes[id]
	if !ok {
		return Sandbox{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return s.copy(), nil
}

// List returns all sandboxes, the newest first.
func (n *Node) List() []Sandbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]Sandbox, 0, len(n.sandboxes))
	for _, s := range n.sandboxes {
		list = append(list, s.copy())
	}
	slices.SortFunc(list, func(a, b Sandbox) int {
		return cmp.Or(b.StartedAt.Compare(a.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// SetTimeout sets a sandbox's end of life, which may come sooner than before.
func (n *Node) SetTimeout(id string, endAt time.Time) error {
	_, err := n.setEnd(id, endAt, true)
	return err
}

// Extend sets a sandbox's end of life unless it already ends later.
func (n *Node) Extend(id string, endAt time.Time) (Sandbox, error) {
	return n.setEnd(id, endAt, false)
}

func (n *Node) setEnd(id string, endAt time.Time, shorten bool) (Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.sandboxes[id]
	if !ok {
		return Sandbox{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if shorten || endAt.After(s.EndAt) {
		s.EndAt = endAt
		s.expiry.Reset(max(time.Until(endAt), 0))
	}
	return s.copy(), nil
}

// randomID returns n characters of [a-z0-9] from the kernel's generator.
func randomID(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 0, n)
	buf := make([]byte, 2*n)
	for len(id) < n {
		rand.Read(buf)
		for _, b := range buf {
			// 252 is the largest multiple of 36 below 256: bytes above it would favour some characters.
			if b < 252 && len(id) < n {
				id = append(id, alphabet[b%36])
			}
		}
	}
	return string(id)
}

// randomUUID returns a version 4 UUID (RFC 9562 §5.4).
func randomUUID() string {
	var u [16]byte
	rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// stopwatch splits a stretch of time into phases that add up to it.
type stopwatch struct {
	last   time.Time
	phases []Phase
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now(), phases: make([]Phase, 0, 4)} }

func (w *stopwatch) lap(name string) {
	now := time.Now()
	w.phases = append(w.phases, Phase{Name: name, Duration: now.Sub(w.last)})
	w.last = now
}
