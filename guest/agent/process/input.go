package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/creack/pty"

	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// input writes to stdin or the terminal, in whole and in order. It waits while the process doesn't read,
// but no longer than ctx.
func (p *proc) input(ctx context.Context, in *e2b.ProcessInput) error {
	if in == nil || in.Stdin == nil && in.PTY == nil {
		return rpc.Errorf(rpc.InvalidArgument, "input: give stdin or pty")
	}
	file, data := p.stdin, in.Stdin
	switch {
	case in.PTY != nil:
		if p.pty == nil {
			return rpc.Errorf(rpc.FailedPrecondition, "tty not assigned to process; write to the stdin instead")
		}
		file, data = p.pty, in.PTY
	case p.pty != nil:
		return rpc.Errorf(rpc.FailedPrecondition, "tty assigned to process; write to the pty instead of the stdin")
	case p.stdin == nil:
		return rpc.Errorf(rpc.FailedPrecondition, "stdin not enabled or closed")
	}
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		file.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	_, err := file.Write(data)
	if !stop() {
		<-interrupted
		file.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO):
		return rpc.Errorf(rpc.FailedPrecondition, "stdin not enabled or closed: %v", err)
	}
	return rpc.Errorf(rpc.Internal, "write input of process %d: %v", p.pid(), err)
}

// streamInput feeds a process from a stream: start names it, data follows.
func (s *Service) streamInput(r *http.Request, _ *rpc.Call, next func() (*e2b.StreamInputRequest, error)) (*e2b.Empty, error) {
	var p *proc
	for {
		req, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return &e2b.Empty{}, nil
		case err != nil:
			return nil, err
		case req.Start != nil:
			if p, err = s.find(req.Start.Process, false); err != nil {
				return nil, err
			}
		case req.Data != nil:
			if p == nil {
				return nil, rpc.Errorf(rpc.InvalidArgument, "data before start: the first message must name the process")
			}
			if err := p.input(r.Context(), req.Data.Input); err != nil {
				return nil, err
			}
		case req.KeepAlive == nil:
			return nil, rpc.Errorf(rpc.Unimplemented, "message is neither start, data nor keepalive")
		}
	}
}

// resize changes the terminal's size; the process gets SIGWINCH from the kernel.
func (p *proc) resize(size *e2b.PTYSize) error {
	if p.pty == nil {
		return rpc.Errorf(rpc.FailedPrecondition, "tty not assigned to process")
	}
	if err := pty.Setsize(p.pty, winsize(size)); err != nil {
		return rpc.Errorf(rpc.Internal, "resize terminal of process %d: %v", p.pid(), err)
	}
	return nil
}

// winsize clamps a size to what a terminal can have.
func winsize(size *e2b.PTYSize) *pty.Winsize {
	return &pty.Winsize{Rows: uint16(min(size.Rows, 65535)), Cols: uint16(min(size.Cols, 65535))}
}
