package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/gateway/keys"
)

// Config says what a Server works with. Node and Keys are required.
type Config struct {
	Node Node
	Keys *keys.Store
	// Domain is the wildcard domain whose hosts "<port>-<id>.<Domain>" reach this gateway. It is told to
	// SDKs with every sandbox; empty if there is none.
	Domain string
	Logger *slog.Logger
	// MaxTimeout is the longest time to live a caller may ask for; 0 means 30 days.
	MaxTimeout time.Duration
	// CreateTimeout bounds a create or kill; 0 means a minute, as long as SDKs wait.
	CreateTimeout time.Duration
	// HeadTimeout bounds the arrival of a request's head; 0 means 30 seconds.
	HeadTimeout time.Duration
}

const (
	// idleTime is how long a kept-alive connection may be silent. It is longer than what SDKs and load
	// balancers use, so that the side closer to the user closes first.
	idleTime = 620 * time.Second
	// headBytes bounds a request's or response's head.
	headBytes = 64 << 10
)

// Server is the gateway: control plane and data plane on one listener.
type Server struct {
	node          Node
	keys          *keys.Store
	domain        string
	log           *slog.Logger
	maxTimeout    time.Duration
	createTimeout time.Duration

	http      *fasthttp.Server
	routes    []route
	creates   createLog
	upstreams *upstreams
	hangups   *hangupWatcher

	// background ends when the server has shut down.
	background context.Context
	stop       context.CancelFunc
}

// New makes a server that is not serving yet. Shutdown ends what it has started.
func New(c Config) (*Server, error) {
	if c.Node == nil || c.Keys == nil {
		return nil, errors.New("gateway: Config needs Node and Keys")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxTimeout == 0 {
		c.MaxTimeout = 30 * 24 * time.Hour
	}
	if c.CreateTimeout == 0 {
		c.CreateTimeout = time.Minute
	}
	if c.HeadTimeout == 0 {
		c.HeadTimeout = 30 * time.Second
	}
	hangups, err := newHangupWatcher()
	if err != nil {
		return nil, err
	}
	s := &Server{
		node: c.Node, keys: c.Keys, domain: c.Domain, log: c.Logger,
		maxTimeout: c.MaxTimeout, createTimeout: c.CreateTimeout,
		routes: apiRoutes(), hangups: hangups,
	}
	s.background, s.stop = context.WithCancel(context.Background())
	s.upstreams = newUpstreams(s.background, c.Node)
	go s.upstreams.sweep()
	s.http = s.newHTTPServer(c.HeadTimeout)
	return s, nil
}

func (s *Server) newHTTPServer(headTimeout time.Duration) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:      s.handle,
		ErrorHandler: refuseBadRequest,
		Logger:       debugLogger{s.log},
		// Uploads are streamed, so only the head has to arrive in time and in bounds; whoever reads a body
		// bounds it.
		ReadTimeout:                  headTimeout,
		IdleTimeout:                  idleTime,
		ReadBufferSize:               headBytes,
		StreamRequestBody:            true,
		MaxRequestBodySize:           math.MaxInt,
		DisablePreParseMultipartForm: true,
		TCPKeepalive:                 true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		LazyRequestTime:              true,
		CloseOnShutdown:              true,
	}
}

// Serve answers on ln until Shutdown, and then returns nil.
func (s *Server) Serve(ln net.Listener) error {
	return s.http.Serve(ln)
}

// Shutdown closes the listeners, waits until running requests are done or ctx ends, and then breaks what is
// left. Sandboxes go on.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.ShutdownWithContext(ctx)
	s.stop()
	s.upstreams.dropAll()
	s.hangups.close()
	return err
}

// handle is the entry of every request. fasthttp does not recover: a panic would end the process and with it
// everybody's streams.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request", "path", string(rawPath(ctx)), "panic", p, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			writeJSON(ctx, fasthttp.StatusInternalServerError, errorf(fasthttp.StatusInternalServerError, "internal error"))
			ctx.SetConnectionClose()
		}
	}()
	t, isData, err := s.findTarget(ctx)
	switch {
	case err != nil:
		refuseTarget(ctx, err)
	case isData:
		s.proxy(ctx, t)
	default:
		s.control(ctx)
	}
}

// refuseBadRequest answers what could not be parsed as a request.
func refuseBadRequest(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	code := fasthttp.StatusBadRequest
	switch {
	case errors.As(err, &small):
		code = fasthttp.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, fasthttp.ErrTimeout):
		code = fasthttp.StatusRequestTimeout
	}
	allowAnyOrigin(ctx)
	writeJSON(ctx, code, errorf(code, "malformed request: %s", clip(err.Error(), 200)))
}

// debugLogger keeps fasthttp's notes about broken connections out of the ordinary log.
type debugLogger struct{ log *slog.Logger }

func (l debugLogger) Printf(format string, args ...any) {
	l.log.Debug("http: " + fmt.Sprintf(format, args...))
}
