package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/blockcow"
	"cella.dev/cella/netvs"
)

// Options configure a node.
type Options struct {
	// State holds templates and disks; it must be on a filesystem with reflinks. Default /var/lib/cella.
	State string
	// Run holds one socket for each sandbox. Default /run/cella.
	Run string
	// PoolMin and PoolMax bound the number of sandboxes kept ready for each template; PoolMax 0 keeps none.
	PoolMin, PoolMax int
	// Network says whether sandboxes get one, Egress where on the host it lives; its PinDir is below Run by default.
	Network NetworkMode
	Egress  netvs.Config
	// Resolvers are asked for the names that sandboxes may know, ADDRESS:PORT each. Default those of /etc/resolv.conf.
	Resolvers []string
	// CreateTimeout bounds a create, from the request to the guest's answer. Default 60 s.
	CreateTimeout time.Duration
	// Logger is where the node tells of sandboxes lost and of background failures. Default slog.Default.
	Logger *slog.Logger
}

// Node runs the sandboxes of this host.
type Node struct {
	opts  Options
	log   *slog.Logger
	lock  *os.File // held flock of the run directory
	disks *blockcow.Store
	// network is nil where there is none, and then noNetwork says why.
	network   *network
	noNetwork error

	creating atomic.Int64 // creates under way, and just done

	// publishing is held while a template's directory and its place in the table change together: two of them
	// at once would take each other's files. It is taken before mu.
	publishing sync.Mutex

	mu        sync.Mutex // guards sandboxes, templates and closed
	sandboxes map[string]*sandbox
	templates map[string]*template // by alias
	closed    bool

	busy sync.WaitGroup // creates and builds under way, and workers not yet reaped
}

// Open takes the node's directories, cleans up after a node that crashed, and loads the templates. One
// process at a time can hold a run directory.
func Open(opts Options) (*Node, error) {
	opts.setDefaults()
	n := &Node{
		opts: opts, log: opts.Logger,
		sandboxes: make(map[string]*sandbox), templates: make(map[string]*template),
	}
	var err error
	if n.lock, err = lockDir(opts.Run); err != nil {
		return nil, err
	}
	if n.disks, err = blockcow.Open(filepath.Join(opts.State, "disks")); err != nil {
		n.lock.Close()
		return nil, err
	}
	if err := errors.Join(n.sweep(), n.loadTemplates()); err != nil {
		n.lock.Close()
		return nil, err
	}
	if err := n.setUpNetwork(); err != nil {
		n.lock.Close()
		return nil, err
	}
	for _, t := range n.templates {
		t.pool = n.startPool(t)
	}
	return n, nil
}

func (o *Options) setDefaults() {
	if o.State == "" {
		o.State = "/var/lib/cella"
	}
	if o.Run == "" {
		o.Run = "/run/cella"
	}
	if o.CreateTimeout == 0 {
		o.CreateTimeout = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create run directory: %w", err)
	}
	f, err := flock(dir)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another cella holds %s; stop it, or choose another directory with --run", dir)
	}
	return f, err
}

// sweep removes what a crashed node left: sockets, and template builds that were not published. Workers end
// with their control sockets, and disks vanish with their workers, so that neither needs looking for.
func (n *Node) sweep() error {
	sockets, _ := filepath.Glob(filepath.Join(n.opts.Run, "*.sock"))
	builds, _ := filepath.Glob(filepath.Join(n.templatesDir(), buildPrefix+"*"))
	var errs []error
	for _, name := range sockets {
		errs = append(errs, os.Remove(name))
	}
	for _, name := range builds {
		dir, err := flock(name)
		if err != nil {
			continue // another process is building it, or has just finished
		}
		n.log.Info("removing an unfinished template build", "path", name)
		errs = append(errs, os.RemoveAll(name), dir.Close())
	}
	return errors.Join(errs...)
}

// flock locks a file or directory until the result is closed.
func flock(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return f, nil
}

// Close kills all sandboxes and waits until every process of the node is gone. Later calls do nothing.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	ids := make([]string, 0, len(n.sandboxes))
	for id := range n.sandboxes {
		ids = append(ids, id)
	}
	n.mu.Unlock()
	for _, id := range ids {
		if err := n.Kill(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
			n.log.Warn("kill at close", "sandbox", id, "error", err)
		}
	}
	n.mu.Lock()
	templates := slices.Collect(maps.Values(n.templates))
	n.mu.Unlock()
	for _, t := range templates {
		t.pool.close()
	}
	reaped := make(chan struct{})
	go func() { n.busy.Wait(); close(reaped) }()
	var err error
	select {
	case <-reaped:
	case <-ctx.Done():
		err = fmt.Errorf("close node: workers are still ending: %w", ctx.Err())
	}
	for _, t := range templates {
		t.close()
	}
	if n.network != nil {
		err = errors.Join(err, n.network.close())
	}
	return errors.Join(err, n.lock.Close())
}
