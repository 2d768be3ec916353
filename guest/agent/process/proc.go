package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/reap"
	"cella.dev/cella/guest/agent/rpc"
)

// Largest chunks of output in one event, as the protocol has them.
const (
	maxChunk    = 32 << 10
	maxPTYChunk = 16 << 10
)

// A proc is a process that was started by a call.
type proc struct {
	service *Service
	config  *e2b.ProcessConfig
	tag     *string
	child   *reap.Process
	// group is nil where cgroups can't be used.
	group *cgroup.Group
	out   fanout
	// end is set before out is finished.
	end *e2b.EndEvent
	// deadline kills the tree, and timedOut says that it did; deadline is nil if there is none.
	deadline *time.Timer
	timedOut atomic.Bool

	// inputMu keeps inputs from mixing. stdin and pty are set at the start; at most one is not nil.
	inputMu sync.Mutex
	stdin   *os.File
	pty     *os.File
}

func (p *proc) pid() int { return p.child.PID }

func (p *proc) matches(sel *e2b.ProcessSelector) bool {
	if sel.PID != nil {
		return int(*sel.PID) == p.pid()
	}
	return p.tag != nil && *p.tag == *sel.Tag
}

// killAfter sets the process's deadline.
func (p *proc) killAfter(d time.Duration) {
	p.deadline = time.AfterFunc(d, func() {
		p.timedOut.Store(true)
		p.killTree() // on failure nobody is left to tell: the caller has its deadline error by now
	})
}

// watch reads the outputs to their ends, waits for the child, and announces how it ended.
func (p *proc) watch(outputs []output) {
	var readers sync.WaitGroup
	for _, o := range outputs {
		readers.Go(func() { p.copy(o) })
	}
	readers.Wait()
	<-p.child.Done()
	p.end = endEvent(p.child.Status())
	p.service.retire(p)
	p.out.finish()

	if p.deadline != nil {
		p.deadline.Stop()
	}
	p.closeInput()
	if p.group != nil {
		p.group.Release()
		p.group.Prepare()
	}
}

// An output is a pipe or terminal that the process writes to.
type output struct {
	file  *os.File
	chunk int
	wrap  func(rpc.Bytes) *e2b.DataEvent
}

func stdoutData(b rpc.Bytes) *e2b.DataEvent { return &e2b.DataEvent{Stdout: b} }
func stderrData(b rpc.Bytes) *e2b.DataEvent { return &e2b.DataEvent{Stderr: b} }
func ptyData(b rpc.Bytes) *e2b.DataEvent    { return &e2b.DataEvent{PTY: b} }

var chunks = sync.Pool{New: func() any { return new([maxChunk]byte) }}

// copy publishes an output until it ends. A terminal ends with EIO, a pipe with EOF.
func (p *proc) copy(o output) {
	defer o.file.Close()
	buf := chunks.Get().(*[maxChunk]byte)
	defer chunks.Put(buf)
	for {
		n, err := o.file.Read(buf[:o.chunk])
		if n > 0 && !p.out.idle() {
			data := append(make(rpc.Bytes, 0, n), buf[:n]...)
			p.out.publish(&e2b.EventResponse{Event: &e2b.ProcessEvent{Data: o.wrap(data)}})
		}
		if err != nil {
			return
		}
	}
}

// endEvent words a wait status as the protocol does.
func endEvent(status syscall.WaitStatus) *e2b.EndEvent {
	end := &e2b.EndEvent{ExitCode: int32(status.ExitStatus()), Exited: status.Exited()}
	switch {
	case status.Exited():
		end.Status = fmt.Sprintf("exit status %d", status.ExitStatus())
	case status.CoreDump():
		end.Status = "signal: " + status.Signal().String() + " (core dumped)"
	default:
		end.Status = "signal: " + status.Signal().String()
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return end
}

// closeStdin makes the process read end of file.
func (p *proc) closeStdin() error {
	if p.pty != nil {
		return rpc.Errorf(rpc.FailedPrecondition, "cannot close stdin for PTY process; send Ctrl+D (0x04) instead")
	}
	if p.stdin == nil {
		return rpc.Errorf(rpc.FailedPrecondition, "stdin not enabled or closed")
	}
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return rpc.Errorf(rpc.Internal, "close stdin: %v", err)
	}
	return nil
}

// closeInput frees what is left when the process has ended.
func (p *proc) closeInput() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	if p.pty != nil {
		p.pty.Close()
	}
}
