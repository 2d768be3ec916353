package gateway

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"cella.dev/cella/node"
)

const (
	// upstreamIdle is how long an idle connection into a sandbox is kept.
	upstreamIdle = 2 * time.Minute
	// sweepEvery is how often connections of sandboxes that ended by themselves are looked for.
	sweepEvery = 10 * time.Second
	// dialTime bounds the way to a port: a guest that does not answer, or whose worker hangs, must not hold callers
	// that may be gone already. It is longer than a worker waits for its guest.
	dialTime = 35 * time.Second
	// maxUpstreamConns per port: every silent stream holds one.
	maxUpstreamConns = 1 << 16
)

// dialBackoff are the waits between tries while a port is not open: a server that was just started in the
// sandbox may need a moment.
var dialBackoff = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond}

// upstreams holds the connections into all sandboxes: a pool per port, so that a call to the agent finds one
// that is open.
type upstreams struct {
	node Node
	// life ends with the server.
	life     context.Context
	dialTime time.Duration

	mu sync.RWMutex
	// sandboxes is guarded by mu.
	sandboxes map[string]*sandboxConns
}

// sandboxConns are the connections into one sandbox.
type sandboxConns struct {
	// life ends when the sandbox is dropped, and with it dials under way.
	life context.Context
	end  context.CancelFunc

	mu sync.Mutex
	// open and pools are guarded by mu. open holds every connection, idle or in use.
	open    map[*upstreamConn]struct{}
	pools   map[int]*fasthttp.HostClient
	dropped bool
}

// upstreamConn is a connection into a sandbox that leaves its set when it is closed.
type upstreamConn struct {
	net.Conn
	of *sandboxConns
}

func newUpstreams(life context.Context, n Node) *upstreams {
	return &upstreams{node: n, life: life, dialTime: dialTime, sandboxes: map[string]*sandboxConns{}}
}

func (u *upstreams) of(id string) *sandboxConns {
	u.mu.RLock()
	sc := u.sandboxes[id]
	u.mu.RUnlock()
	if sc != nil {
		return sc
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if sc = u.sandboxes[id]; sc == nil {
		sc = &sandboxConns{open: map[*upstreamConn]struct{}{}, pools: map[int]*fasthttp.HostClient{}}
		sc.life, sc.end = context.WithCancel(u.life)
		u.sandboxes[id] = sc
	}
	return sc
}

// pool returns the pool of one port, or nil if the sandbox is being dropped. Only its connections are used: a HostClient's own Do writes a whole
// request before it reads, so an upload refused half-way, or a stream both ways, can't work through it.
func (u *upstreams) pool(t target) *fasthttp.HostClient {
	sc := u.of(t.id)
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.dropped {
		return nil
	}
	hc := sc.pools[t.port]
	if hc == nil {
		hc = &fasthttp.HostClient{
			Addr:                t.id,
			Dial:                func(string) (net.Conn, error) { return u.dial(sc, t) },
			MaxConns:            maxUpstreamConns,
			MaxIdleConnDuration: upstreamIdle,
			// The last used is the likeliest to be alive, and lets the others grow old.
			ConnPoolStrategy: fasthttp.LIFO,
		}
		sc.pools[t.port] = hc
	}
	return hc
}

func (u *upstreams) dial(sc *sandboxConns, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(sc.life, u.dialTime)
	defer cancel()
	for try := 0; ; try++ {
		c, err := u.node.Dial(ctx, t.id, t.port)
		if err == nil {
			return sc.add(c)
		}
		if sc.life.Err() != nil {
			return nil, node.ErrNotFound
		}
		if !errors.Is(err, node.ErrPortClosed) || try == len(dialBackoff) {
			return nil, err
		}
		select {
		case <-time.After(dialBackoff[try]):
		case <-sc.life.Done():
			return nil, node.ErrNotFound
		}
	}
}

func (sc *sandboxConns) add(c net.Conn) (net.Conn, error) {
	uc := &upstreamConn{Conn: c, of: sc}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.dropped {
		c.Close()
		return nil, node.ErrNotFound
	}
	sc.open[uc] = struct{}{}
	return uc, nil
}

func (c *upstreamConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// idleAlive reports whether a connection from the pool can carry a request: nothing to read, so neither closed
// by the guest nor holding bytes that nobody asked for, which would be taken for the next answer.
func (c *upstreamConn) idleAlive() bool {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		alive = n == 0 && err == nil
	})
	return alive
}

// drop breaks everything that flows into or out of a sandbox.
func (u *upstreams) drop(id string) {
	u.mu.Lock()
	sc := u.sandboxes[id]
	delete(u.sandboxes, id)
	u.mu.Unlock()
	if sc != nil {
		sc.drop()
	}
}

func (sc *sandboxConns) drop() {
	sc.end()
	sc.mu.Lock()
	sc.dropped = true
	open := make([]*upstreamConn, 0, len(sc.open))
	for c := range sc.open {
		open = append(open, c)
	}
	pools := sc.pools
	sc.pools = nil
	sc.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	for _, hc := range pools {
		hc.CloseIdleConnections() // lets the pool's cleaner end
	}
}

func (u *upstreams) dropAll() {
	u.mu.Lock()
	all := u.sandboxes
	u.sandboxes = map[string]*sandboxConns{}
	u.mu.Unlock()
	for _, sc := range all {
		sc.drop()
	}
}

// sweep drops the connections of sandboxes that ended without a call through this gateway.
func (u *upstreams) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-u.life.Done():
			return
		case <-tick.C:
		}
		u.mu.RLock()
		ids := make([]string, 0, len(u.sandboxes))
		for id := range u.sandboxes {
			ids = append(ids, id)
		}
		u.mu.RUnlock()
		for _, id := range ids {
			if _, err := u.node.Get(id); errors.Is(err, node.ErrNotFound) {
				u.drop(id)
			}
		}
	}
}

// link is a connection on loan from a pool.
type link struct {
	conn *upstreamConn
	// reused says that it has carried a request before.
	reused bool
	r      *bufio.Reader
	w      *bufio.Writer
	// giveBack returns the connection to the pool, or closes it.
	giveBack func(reuse bool)
}

// take lends a connection to t's port, live as far as can be seen; fresh asks for a new one.
func (u *upstreams) take(t target, fresh bool) (*link, error) {
	hc := u.pool(t)
	if hc == nil {
		return nil, node.ErrNotFound
	}
	for {
		cc, err := hc.AcquireConn(0, false)
		if err != nil {
			return nil, err
		}
		conn := cc.Conn().(*upstreamConn)
		reused := !cc.LastUseTime().IsZero()
		if reused && (fresh || !conn.idleAlive()) {
			hc.CloseConn(cc)
			continue
		}
		return &link{conn: conn, reused: reused, r: takeReader(conn), w: takeWriter(conn),
			giveBack: func(reuse bool) {
				if reuse {
					hc.ReleaseConn(cc)
				} else {
					hc.CloseConn(cc)
				}
			}}, nil
	}
}

// release ends the loan.
func (l *link) release(reuse bool) {
	reuse = reuse && l.r.Buffered() == 0
	readers.Put(l.r)
	writers.Put(l.w)
	l.giveBack(reuse)
}

// One pool of buffers serves all sandboxes: one per port would multiply by their number.
var (
	readers sync.Pool // *bufio.Reader
	writers sync.Pool // *bufio.Writer
)

// writeBytes is a connection's write buffer: enough for a request's head and a small body in one system call.
const writeBytes = 16 << 10

func takeReader(c net.Conn) *bufio.Reader {
	if r, ok := readers.Get().(*bufio.Reader); ok {
		r.Reset(c)
		return r
	}
	return bufio.NewReaderSize(c, headBytes)
}

func takeWriter(c net.Conn) *bufio.Writer {
	if w, ok := writers.Get().(*bufio.Writer); ok {
		w.Reset(c)
		return w
	}
	return bufio.NewWriterSize(c, writeBytes)
}
