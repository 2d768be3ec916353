package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/identity"
	"cella.dev/cella/guest/wire"
)

const (
	// maxControlBytes bounds a control request.
	maxControlBytes = 1 << 20
	// controlTimeout bounds reading a request and writing its reply.
	controlTimeout = 30 * time.Second
	// freezeTimeout bounds how long user processes may take to stop.
	freezeTimeout = 2 * time.Second
)

// ServeControl takes control connections, one request each, until l is closed.
func (a *Agent) ServeControl(l net.Listener) error {
	return a.acceptEach(l, a.handleControl)
}

// acceptEach serves every connection of l in a goroutine of its own.
func (a *Agent) acceptEach(l net.Listener, handle func(net.Conn)) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		go handle(conn)
	}
}

func (a *Agent) handleControl(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(controlTimeout))
	var req wire.ControlRequest
	err := json.NewDecoder(io.LimitReader(conn, maxControlBytes)).Decode(&req)
	if err != nil {
		err = fmt.Errorf("read control request: %w", err)
	} else {
		err = a.Control(&req)
	}
	reply := wire.ControlReply{OK: err == nil, Version: wire.AgentVersion, BootNano: bootNano()}
	if err != nil {
		reply.Error = err.Error()
	}
	if err := json.NewEncoder(conn).Encode(reply); err != nil {
		a.cfg.Log.Warn("control reply lost", "op", req.Op, "err", err)
	}
	if req.Op == wire.OpShutdown && reply.OK {
		conn.Close() // the reply leaves before the machine goes
		a.cfg.Machine.PowerOff()
	}
}

// Control does what req asks for. OpShutdown is only checked here: the reply has to go first.
func (a *Agent) Control(req *wire.ControlRequest) error {
	switch req.Op {
	case wire.OpPing:
		return nil
	case wire.OpInit:
		if req.Init == nil {
			return errors.New("init: the request holds no init")
		}
		return a.init(req.Init)
	case wire.OpFreeze:
		return a.freeze(req.DropCaches)
	case wire.OpShutdown:
		if a.cfg.Machine == nil {
			return errors.New("shutdown: this agent does not own its machine")
		}
		return nil
	}
	return fmt.Errorf("unknown control operation %q", req.Op)
}

// init makes the sandbox itself. The order matters: random numbers before the clock before identity, and
// user code, old and new, only after all of them.
func (a *Agent) init(in *wire.Init) error {
	a.control.Lock()
	defer a.control.Unlock()
	id := identity.Identity{
		SandboxID: in.SandboxID, TemplateID: in.TemplateID, AccessToken: in.AccessToken,
		Env: in.Env, DefaultUser: in.DefaultUser, DefaultWorkdir: in.DefaultWorkdir,
	}
	if m := a.cfg.Machine; m != nil {
		if err := m.seed(in.Entropy); err != nil {
			return fmt.Errorf("init: %w", err)
		}
		if err := m.setClock(in.UnixNano); err != nil {
			return fmt.Errorf("init: %w", err)
		}
		if err := m.nameSandbox(id); err != nil {
			return fmt.Errorf("init: %w", err)
		}
	}
	a.ident.Set(id)
	if a.frozen {
		if err := a.cfg.Groups.Thaw(); err != nil {
			return fmt.Errorf("init: let processes run: %w", err)
		}
		a.frozen = false
	}
	a.gate.open.Store(true)
	return nil
}

// freeze brings the machine to a state that is worth keeping: nothing half-written, no garbage, no
// connection that would be dead on the other side.
func (a *Agent) freeze(dropCaches bool) error {
	a.control.Lock()
	defer a.control.Unlock()
	a.gate.open.Store(false)
	a.server.SetKeepAlivesEnabled(false) // closes idle connections
	a.server.SetKeepAlivesEnabled(true)
	if a.cfg.Groups != nil {
		ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
		defer cancel()
		a.frozen = true // even if it fails half-way, the next init has to thaw
		if err := a.cfg.Groups.Freeze(ctx); err != nil {
			return err
		}
	}
	debug.FreeOSMemory()
	if a.cfg.Machine == nil {
		return nil
	}
	unix.Sync()
	if dropCaches {
		return a.cfg.Machine.dropCaches()
	}
	return nil
}

// bootNano is the time since the kernel's boot in nanoseconds.
func bootNano() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return ts.Nano()
}
