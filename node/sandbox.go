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
	"sync"
	"time"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/netvs"
	"cella.dev/cella/node/worker"
)

// sandbox is a Sandbox and what runs it. Its Sandbox fields are guarded by Node.mu once it is in the table;
// the rest never changes.
type sandbox struct {
	Sandbox
	worker *worker.Worker
	socket string         // the worker's vsock listener
	expiry *time.Timer    // fires at EndAt
	egress *netvs.Sandbox // nil without a network

	policyMu sync.Mutex // held while the network policy changes
}

// copy returns the public half. The caller holds Node.mu.
func (s *sandbox) copy() Sandbox {
	c := s.Sandbox
	c.Metadata = maps.Clone(c.Metadata)
	c.Phases = slices.Clone(c.Phases)
	c.Network = c.Network.clone()
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
	policy, err := parsePolicy(req.AllowInternet, req.Network)
	if err == nil {
		err = n.checkNetwork(t, req.Network)
	}
	if err != nil {
		return Sandbox{}, err
	}
	if err := n.enter(); err != nil {
		return Sandbox{}, err
	}
	defer n.busy.Done()
	n.creating.Add(1)
	defer n.created()
	ctx, cancel := context.WithTimeout(ctx, n.opts.CreateTimeout)
	defer cancel()
	s, err := n.launch(ctx, t, req, policy)
	if err != nil {
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

// firstCommand is how long the first command in a new sandbox is given the processor that its create had.
const firstCommand = 100 * time.Millisecond

// created ends a create: after its first command, pools that stood back for it may go on.
func (n *Node) created() {
	time.AfterFunc(firstCommand, func() {
		n.creating.Add(-1)
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, t := range n.templates {
			t.pool.nudge()
		}
	})
}

// launch takes a sandbox from the template's pool, or from nothing, to one that is the caller's and has answered.
func (n *Node) launch(ctx context.Context, t *template, req CreateRequest, policy *netvs.Policy) (*sandbox, error) {
	clock := newStopwatch()
	var s *sandbox
	if !req.Cold {
		s = t.pool.take()
	}
	if s != nil {
		clock.lap("claim")
		clock.prepared("disk", "restore")
	} else {
		var err error
		if s, err = n.start(ctx, t, req.Cold, clock); err != nil {
			return nil, err
		}
	}
	s.describe(t, req)
	if s.egress != nil { // before any code of the user's runs
		if err := s.egress.SetPolicy(policy); err != nil {
			s.retire()
			return nil, err
		}
	}
	handshake := control
	init := wire.ControlRequest{Op: wire.OpInit, Init: newInit(s, t, req.Env)}
	if req.Cold {
		handshake = controlBooting
	}
	reply, err := handshake(ctx, s.socket, init)
	if err != nil {
		s.retire()
		return nil, s.orExit(err)
	}
	clock.lap("handshake")
	s.AgentVersion, s.Phases = reply.Version, clock.phases
	return s, nil
}

// describe makes a sandbox the caller's. Its ID stays as it was made: others read it already.
func (s *sandbox) describe(t *template, req CreateRequest) {
	s.TemplateID, s.Alias, s.Team, s.State = t.ID, t.Alias, req.Team, StateRunning
	s.CPUCount, s.MemoryMB, s.DiskSizeMB = t.CPUCount, t.MemoryMB, t.DiskSizeMB
	s.AllowInternet, s.Network, s.Metadata = req.AllowInternet, req.Network.clone(), maps.Clone(req.Metadata)
	s.AccessToken = ""
	if req.Secure {
		s.AccessToken = randomID(32)
	}
}

// start makes a machine from a template, restored or booted, whose agent is about to be told who it is. On an
// error nothing is left of it.
func (n *Node) start(ctx context.Context, t *template, cold bool, clock *stopwatch) (_ *sandbox, err error) {
	s := &sandbox{Sandbox: Sandbox{ID: "i" + randomID(20)}}
	s.socket = filepath.Join(n.opts.Run, s.ID+".sock")
	connection, err := n.connect(s, t)
	if err != nil {
		return nil, err
	}
	if s.worker, err = worker.Start(t.shape()); err != nil {
		n.disconnect(s)
		return nil, err
	}
	n.busy.Go(func() { n.watch(s) })
	defer func() {
		if err != nil {
			s.retire()
		}
	}()
	clock.lap("claim")
	disk, err := n.disks.Clone(t.disk)
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	clock.lap("disk")
	listener, err := listenVsock(s.socket)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if cold {
		if err := bootTemplate(ctx, s.worker, t.dir, worker.BootFiles{Disk: disk, Listener: listener, Network: connection}); err != nil {
			return nil, err
		}
		clock.lap("boot")
		return s, nil
	}
	files := worker.RestoreFiles{State: t.snapshot.State, Memory: t.snapshot.Memory, Disk: disk, Listener: listener,
		Network: connection}
	if _, err := s.worker.Restore(ctx, files, t.workingSet); err != nil {
		return nil, err
	}
	clock.lap("restore")
	return s, nil
}

// admit puts a launched sandbox into the table; its time to live begins now.
func (n *Node) admit(s *sandbox, ttl time.Duration) (Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		s.retire()
		return Sandbox{}, fmt.Errorf("%w: the node is closing", ErrCapacity)
	}
	select {
	case <-s.worker.Done(): // watch has looked for it in the table already
		return Sandbox{}, fmt.Errorf("create sandbox from %s: %w", s.Alias, s.worker.Err())
	default:
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
	n.disconnect(s)
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

// prepared records phases that had been gone through before the clock was started.
func (w *stopwatch) prepared(names ...string) {
	for _, name := range names {
		w.phases = append(w.phases, Phase{Name: name})
	}
}

func (w *stopwatch) lap(name string) {
	now := time.Now()
	w.phases = append(w.phases, Phase{Name: name, Duration: now.Sub(w.last)})
	w.last = now
}
