// Package process serves process.Process of the E2B agent protocol: it starts processes, streams their
// output to any number of subscribers, and feeds and signals them.
//
// A process belongs to nobody: the call that started it may end and the process goes on, until it exits,
// is killed, or meets the deadline it was started with.
package process

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/identity"
	"cella.dev/cella/guest/agent/reap"
	"cella.dev/cella/guest/agent/rpc"
)

const (
	// keepEnded is how long an ended process can still be asked for its exit code.
	keepEnded = 30 * time.Second
	// maxEnded bounds how many are kept.
	maxEnded = 1024
	// stallLimit is how long a subscriber may hold the process up by not reading before it is cut off.
	stallLimit = 10 * time.Second
)

// Service holds the processes.
type Service struct {
	reaper *reap.Reaper
	// groups is nil where cgroups can't be used: then process trees are found through /proc.
	groups *cgroup.Parent
	ident  *identity.Store

	mu sync.Mutex
	// procs holds running processes, ended those kept for late callers, oldest first.
	procs map[int]*proc
	ended []*proc
}

// NewService makes a service without processes. groups may be nil.
func NewService(reaper *reap.Reaper, groups *cgroup.Parent, ident *identity.Store) *Service {
	return &Service{reaper: reaper, groups: groups, ident: ident, procs: map[int]*proc{}}
}

// Register adds the service's methods to mux.
func (s *Service) Register(mux *http.ServeMux) {
	const prefix = "/process.Process/"
	mux.Handle(prefix+"List", rpc.Unary(s.list))
	mux.Handle(prefix+"Start", rpc.ServerStream(s.start))
	mux.Handle(prefix+"Connect", rpc.ServerStream(s.connect))
	mux.Handle(prefix+"Update", rpc.Unary(s.update))
	mux.Handle(prefix+"SendInput", rpc.Unary(s.sendInput))
	mux.Handle(prefix+"StreamInput", rpc.ClientStream(s.streamInput))
	mux.Handle(prefix+"SendSignal", rpc.Unary(s.sendSignal))
	mux.Handle(prefix+"CloseStdin", rpc.Unary(s.closeStdin))
}

func (s *Service) list(*http.Request, *rpc.Call, *e2b.ListRequest) (*e2b.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &e2b.ListResponse{}
	for _, p := range s.procs {
		res.Processes = append(res.Processes, &e2b.ProcessInfo{Config: p.config, PID: rpc.Uint32(p.pid()), Tag: p.tag})
	}
	slices.SortFunc(res.Processes, func(a, b *e2b.ProcessInfo) int { return int(a.PID) - int(b.PID) })
	return res, nil
}

func (s *Service) start(r *http.Request, call *rpc.Call, req *e2b.StartRequest, out *rpc.Sender[e2b.EventResponse]) error {
	u, err := s.ident.UserOf(call.Header)
	if err != nil {
		return err
	}
	sub := newSubscriber()
	p, err := s.launch(u, req, sub, call.Timeout)
	if err != nil {
		return err
	}
	return p.stream(r.Context(), call, sub, out)
}

func (s *Service) connect(r *http.Request, call *rpc.Call, req *e2b.ConnectRequest, out *rpc.Sender[e2b.EventResponse]) error {
	p, err := s.find(req.Process, true)
	if err != nil {
		return err
	}
	sub := newSubscriber()
	p.out.subscribe(sub)
	return p.stream(r.Context(), call, sub, out)
}

func (s *Service) update(_ *http.Request, _ *rpc.Call, req *e2b.UpdateRequest) (*e2b.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	if req.PTY != nil && req.PTY.Size != nil {
		if err := p.resize(req.PTY.Size); err != nil {
			return nil, err
		}
	}
	return &e2b.Empty{}, nil
}

func (s *Service) sendInput(r *http.Request, _ *rpc.Call, req *e2b.SendInputRequest) (*e2b.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	if err := p.input(r.Context(), req.Input); err != nil {
		return nil, err
	}
	return &e2b.Empty{}, nil
}

func (s *Service) sendSignal(_ *http.Request, _ *rpc.Call, req *e2b.SendSignalRequest) (*e2b.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	switch req.Signal {
	case e2b.SignalKill:
		err = p.killTree()
	case e2b.SignalTerm:
		err = s.reaper.Signal(p.child, syscall.SIGTERM)
	default:
		return nil, rpc.Errorf(rpc.Unimplemented, "signal %d is not supported; use SIGTERM or SIGKILL", req.Signal)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil, rpc.Errorf(rpc.NotFound, "process with pid %d has ended", p.pid())
	}
	if err != nil {
		return nil, rpc.Errorf(rpc.Internal, "signal process %d: %v", p.pid(), err)
	}
	return &e2b.Empty{}, nil
}

func (s *Service) closeStdin(_ *http.Request, _ *rpc.Call, req *e2b.CloseStdinRequest) (*e2b.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	if err := p.closeStdin(); err != nil {
		return nil, err
	}
	return &e2b.Empty{}, nil
}

// find looks a process up by pid or tag, among those that have ended too if asked.
func (s *Service) find(sel *e2b.ProcessSelector, ended bool) (*proc, error) {
	if sel == nil || sel.PID == nil && sel.Tag == nil {
		return nil, rpc.Errorf(rpc.InvalidArgument, "process: give its pid or its tag")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.procs {
		if p.matches(sel) {
			return p, nil
		}
	}
	for i := len(s.ended) - 1; ended && i >= 0; i-- {
		if s.ended[i].matches(sel) {
			return s.ended[i], nil
		}
	}
	if sel.PID != nil {
		return nil, rpc.Errorf(rpc.NotFound, "process with pid %d not found", *sel.PID)
	}
	return nil, rpc.Errorf(rpc.NotFound, "process with tag %s not found", strconv.Quote(*sel.Tag))
}

// add makes a started process known.
func (s *Service) add(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[p.pid()] = p
}

// retire moves an ended process to those kept for a while.
func (s *Service) retire(p *proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.procs[p.pid()] == p {
		delete(s.procs, p.pid())
	}
	s.ended = append(s.ended, p)
	if len(s.ended) > maxEnded {
		s.ended = slices.Delete(s.ended, 0, 1)
	}
	time.AfterFunc(keepEnded, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = slices.DeleteFunc(s.ended, func(q *proc) bool { return q == p })
	})
}
