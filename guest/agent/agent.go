// Package agent is what runs inside every sandbox: it serves the E2B agent protocol to the gateway, takes
// the host's control operations, and forwards connections to the sandbox's own ports.
//
//	host                                   guest
//	gateway ──vsock 49983── HTTP: process.Process, filesystem.Filesystem, /files …
//	node    ──vsock 1024─── ping, init, freeze, shutdown
//	gateway ──vsock 1025─── any TCP port on 127.0.0.1
//
// Nothing but GET /health is answered until the host has sent init, and again after each freeze: what
// runs in a sandbox never sees another's token, clock or random numbers.
package agent

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/files"
	"cella.dev/cella/guest/agent/identity"
	"cella.dev/cella/guest/agent/process"
	"cella.dev/cella/guest/agent/reap"
)

// Config is what an agent needs from its surroundings.
type Config struct {
	Reaper *reap.Reaper
	// Groups is nil where cgroup v2 can't be used.
	Groups *cgroup.Parent
	Users  *accounts.Database
	// Machine is the guest kernel; nil for an agent that runs on somebody's host and must not touch it.
	Machine *Machine
	Log     *slog.Logger
}

// Agent is one sandbox's agent.
type Agent struct {
	cfg    Config
	ident  *identity.Store
	gate   gate
	server *http.Server

	// control is held during an operation that changes the sandbox: they come one at a time.
	control sync.Mutex
	// frozen says that user processes are stopped. Guarded by control.
	frozen bool
}

// New makes an agent. It refuses user calls until Init.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, ident: identity.NewStore(cfg.Users)}
	mux := http.NewServeMux()
	process.NewService(cfg.Reaper, cfg.Groups, a.ident).Register(mux)
	files.NewService(a.ident).Register(mux)
	a.registerHost(mux)
	a.server = &http.Server{
		Handler:           a.gate.guard(allowCORS(a.authorize(mux))),
		ReadHeaderTimeout: 30 * time.Second,
		// Longer than the gateway keeps idle connections, so that the gateway is the one to close them.
		IdleTimeout: 640 * time.Second,
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return a
}

// Serve answers the E2B protocol on l until l is closed.
func (a *Agent) Serve(l net.Listener) error { return a.server.Serve(l) }
