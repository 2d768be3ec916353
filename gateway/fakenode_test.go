package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cella.dev/cella/gateway/keys"
	"cella.dev/cella/guest/wire"
	"cella.dev/cella/node"
)

// fakeNode runs sandboxes that are HTTP servers of the test's own, on unix sockets.
type fakeNode struct {
	dir string

	mu sync.Mutex
	// All below is guarded by mu.
	sandboxes map[string]*fakeSandbox
	created   []node.CreateRequest
	dials     int
	// createErr makes the next creates fail.
	createErr error
	// createWait delays creates until it is closed, if it is not nil.
	createWait chan struct{}
	conflict   error

	hung chan struct{} // told of each dial to a silent port
}

type fakeSandbox struct {
	node.Sandbox
	ports map[int]string // port → socket path
	stop  []func()
}

// silent is the socket of a port behind which nobody ever answers, as in a guest that hangs.
const silent = "silent"

func newFakeNode(t testing.TB) *fakeNode {
	// Not t.TempDir: it holds the test's name, and a socket's path has at most 108 bytes.
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &fakeNode{dir: dir, sandboxes: map[string]*fakeSandbox{}, hung: make(chan struct{}, 100)}
}

func (f *fakeNode) Create(ctx context.Context, req node.CreateRequest) (node.Sandbox, error) {
	f.mu.Lock()
	wait, err := f.createWait, f.createErr
	f.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return node.Sandbox{}, fmt.Errorf("claim: %w", ctx.Err())
		}
	}
	if err != nil {
		return node.Sandbox{}, err
	}
	tmpl, err := f.Template(req.Template)
	if err != nil {
		return node.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.created = append(f.created, req)
	n := len(f.created)
	sb := node.Sandbox{
		ID: fmt.Sprintf("i%020d", n), TemplateID: tmpl.ID, Alias: tmpl.Alias, Team: req.Team, State: node.StateRunning,
		StartedAt: epoch.Add(time.Duration(n) * time.Second), EndAt: time.Now().Add(req.Timeout),
		CPUCount: tmpl.CPUCount, MemoryMB: tmpl.MemoryMB, DiskSizeMB: tmpl.DiskSizeMB, AgentVersion: tmpl.AgentVersion,
		AllowInternet: req.AllowInternet, Network: req.Network, Metadata: maps.Clone(req.Metadata),
	}
	if req.Secure {
		sb.AccessToken = fmt.Sprintf("token-%d", n)
	}
	f.sandboxes[sb.ID] = &fakeSandbox{Sandbox: sb, ports: map[int]string{}}
	return sb, nil
}

// epoch is when the first fake sandbox starts, a second before.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (f *fakeNode) Get(id string) (node.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandboxes[id]
	if sb == nil {
		return node.Sandbox{}, fmt.Errorf("%q: %w", id, node.ErrNotFound)
	}
	return sb.Sandbox, nil
}

func (f *fakeNode) List() []node.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []node.Sandbox
	for _, sb := range f.sandboxes {
		out = append(out, sb.Sandbox)
	}
	return out
}

// SetNetwork knows the errors by the words of the policy.
func (f *fakeNode) SetNetwork(id string, internet *bool, p node.NetworkPolicy) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandboxes[id]
	switch {
	case sb == nil:
		return node.ErrNotFound
	case len(p.AllowOut) > 0 && p.AllowOut[0] == "malformed":
		return fmt.Errorf("%w: allowOut[0] %q", node.ErrPolicy, p.AllowOut[0])
	case len(p.AllowOut) > 0 && p.AllowOut[0] == "impossible":
		return fmt.Errorf("%w: it is off", node.ErrNoNetwork)
	}
	sb.AllowInternet, sb.Network = internet, p
	return nil
}

func (f *fakeNode) Kill(_ context.Context, id string) error {
	f.mu.Lock()
	sb := f.sandboxes[id]
	delete(f.sandboxes, id)
	f.mu.Unlock()
	if sb == nil {
		return node.ErrNotFound
	}
	for _, stop := range sb.stop {
		stop()
	}
	return nil
}

func (f *fakeNode) SetTimeout(id string, endAt time.Time) error {
	_, err := f.update(id, func(sb *node.Sandbox) { sb.EndAt = endAt })
	return err
}

func (f *fakeNode) Extend(id string, endAt time.Time) (node.Sandbox, error) {
	return f.update(id, func(sb *node.Sandbox) {
		if endAt.After(sb.EndAt) {
			sb.EndAt = endAt
		}
	})
}

func (f *fakeNode) update(id string, change func(*node.Sandbox)) (node.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandboxes[id]
	if sb == nil {
		return node.Sandbox{}, node.ErrNotFound
	}
	if f.conflict != nil {
		return node.Sandbox{}, f.conflict
	}
	change(&sb.Sandbox)
	return sb.Sandbox, nil
}

func (f *fakeNode) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	f.mu.Lock()
	f.dials++
	sb := f.sandboxes[id]
	path := ""
	if sb != nil {
		path = sb.ports[port]
	}
	f.mu.Unlock()
	if sb == nil {
		return nil, node.ErrNotFound
	}
	if path == "" {
		return nil, fmt.Errorf("port %d: %w", port, node.ErrPortClosed)
	}
	if path == silent {
		f.hung <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

func (f *fakeNode) Template(nameOrID string) (node.Template, error) {
	for _, t := range f.Templates() {
		if nameOrID == t.ID || nameOrID == t.Alias {
			return t, nil
		}
	}
	return node.Template{}, fmt.Errorf("%q: %w", nameOrID, node.ErrTemplateNotFound)
}

func (f *fakeNode) Templates() []node.Template {
	return []node.Template{
		{ID: "tbase", Alias: "base", BuildID: "b1", CPUCount: 2, MemoryMB: 512, DiskSizeMB: 1024, AgentVersion: wire.AgentVersion, CreatedAt: epoch},
		{ID: "tother", Alias: "other", BuildID: "b2", CPUCount: 1, MemoryMB: 256, DiskSizeMB: 512, AgentVersion: wire.AgentVersion, CreatedAt: epoch},
	}
}

// listen opens a port of a sandbox.
func (f *fakeNode) listen(t testing.TB, id string, port int) net.Listener {
	t.Helper()
	f.mu.Lock()
	path := filepath.Join(f.dir, fmt.Sprintf("%s-%d", strings.TrimLeft(id, "i0"), port))
	f.mu.Unlock()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.sandboxes[id].ports[port] = path
	f.sandboxes[id].stop = append(f.sandboxes[id].stop, func() { ln.Close() })
	f.mu.Unlock()
	t.Cleanup(func() { ln.Close() })
	return ln
}

// serve runs an HTTP server on a port of a sandbox.
func (f *fakeNode) serve(t testing.TB, id string, port int, h http.HandlerFunc) {
	t.Helper()
	ln := f.listen(t, id, port)
	srv := &http.Server{Handler: h}
	go srv.Serve(ln)
	stop := func() { srv.Close() }
	f.mu.Lock()
	f.sandboxes[id].stop = append(f.sandboxes[id].stop, stop)
	f.mu.Unlock()
	t.Cleanup(stop)
}

// rig is a gateway over a fake node, with keys of two teams.
type rig struct {
	t    testing.TB
	node *fakeNode
	keys *keys.Store
	gw   *Server
	url  string
	addr string
	// key belongs to team "blue", other to "red".
	key, other string
}

const testDomain = "cella.test"

func newRig(t testing.TB, adjust ...func(*Config)) *rig {
	t.Helper()
	store, err := keys.Open(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, node: newFakeNode(t), keys: store}
	_, r.key, err = store.Create("blue", "blue")
	if err != nil {
		t.Fatal(err)
	}
	_, r.other, err = store.Create("red", "red")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Node: r.node, Keys: store, Domain: testDomain, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range adjust {
		f(&c)
	}
	if r.gw, err = New(c); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.gw.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.gw.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	r.addr = ln.Addr().String()
	r.url = "http://" + r.addr
	return r
}

// sandbox makes one through the node, owned by team blue.
func (r *rig) sandbox(secure bool) node.Sandbox {
	r.t.Helper()
	sb, err := r.node.Create(context.Background(), node.CreateRequest{Template: "base", Timeout: time.Minute, Team: "blue", Secure: secure})
	if err != nil {
		r.t.Fatal(err)
	}
	return sb
}
