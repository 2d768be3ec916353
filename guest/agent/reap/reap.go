// Package reap starts children and waits for them. As PID 1 the agent inherits every orphan in the guest
// and must wait for it, yet a wait for "any child" would steal the exit status that os/exec is waiting
// for. So there is one waiter, and everything that starts a process goes through it.
package reap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// A Process is a started child. Its status may be read once Done is closed.
type Process struct {
	PID    int
	done   chan struct{}
	status syscall.WaitStatus
}

// Done is closed when the process has ended and been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how the process ended; valid after Done.
func (p *Process) Status() syscall.WaitStatus { return p.status }

// A Reaper waits for all children of this program. Nothing else in the program may wait or use os/exec.
type Reaper struct {
	// mu is held while a child is started, so that no status is read before its owner is known.
	mu       sync.Mutex
	children map[int]*Process
	// empty is closed and cleared when no child is left.
	empty chan struct{}
}

// New starts a Reaper.
func New() *Reaper {
	r := &Reaper{children: map[int]*Process{}}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, syscall.SIGCHLD)
	go func() {
		for range sigchld {
			r.reap()
		}
	}()
	return r
}

// Start runs the program at path.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (*Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &Process{PID: pid, done: make(chan struct{})}
	r.children[pid] = p
	return p, nil
}

// Signal sends sig to the process, but never to a stranger that got its number after it was reaped.
func (r *Reaper) Signal(p *Process, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[p.PID] != p {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.PID, sig)
}

// SignalGroup does the same for the process group that p leads.
func (r *Reaper) SignalGroup(p *Process, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[p.PID] != p {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.PID, sig)
}

// reap collects every child that has ended. SIGCHLD doesn't count, so one signal may stand for many.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			if r.empty != nil {
				close(r.empty)
				r.empty = nil
			}
			return
		case err != nil || pid == 0:
			return
		}
		if p, ok := r.children[pid]; ok {
			delete(r.children, pid)
			p.status = status
			close(p.done)
		}
	}
}

// WaitAll returns when no child is left, orphans included, or with ctx's error.
func (r *Reaper) WaitAll(ctx context.Context) error {
	r.mu.Lock()
	if r.empty == nil {
		r.empty = make(chan struct{})
	}
	empty := r.empty
	r.mu.Unlock()
	r.reap()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
