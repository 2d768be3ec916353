package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"cella.dev/cella/memsnap"
	"cella.dev/cella/vmm"
)

// ErrExited says that the worker's machine or process has ended.
var ErrExited = errors.New("the virtual machine has exited")

// Worker is the node's handle on one VMM process.
type Worker struct {
	cmd     *exec.Cmd
	conn    *net.UnixConn
	ready   chan struct{}
	replies chan message
	done    chan struct{}

	call    sync.Mutex // one request at a time; guards givenUp
	givenUp bool       // a request has no reply: the next one could be given it

	mu     sync.Mutex // guards reason and asked
	reason string
	asked  bool // a request waits for its reply
}

// withoutHugePages keeps the kernel from backing small heaps with 2 MiB pages: a worker's is a few hundred KiB. The
// setting is the process's and its children's, and survives exec. Guest memory is not affected: it is a memfd.
var withoutHugePages = sync.OnceFunc(func() { unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) })

// Start begins a worker for machines of the given shape. It returns as soon as the process runs; the first
// call waits until it is ready.
func Start(shape vmm.Shape) (*Worker, error) {
	withoutHugePages()
	root, err := emptyRoot()
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	conn, err := unixConn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	cmd := exec.Command(self, "vmm", strconv.Itoa(shape.VCPUs), strconv.FormatUint(shape.MemoryBytes, 10))
	cmd.Env = []string{"GOMAXPROCS=2"}        // nothing of the node's environment is the worker's business
	cmd.ExtraFiles = []*os.File{theirs, root} // controlFD, emptyRootFD
	cmd.Stderr = os.Stderr
	// Its own session: a Ctrl-C at the terminal is for the node, which ends its workers in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &Worker{
		cmd: cmd, conn: conn,
		ready: make(chan struct{}), replies: make(chan message, 1), done: make(chan struct{}),
	}
	go w.listen()
	return w, nil
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// listen delivers the worker's messages until it ends or breaks the protocol, then reaps it.
func (w *Worker) listen() {
	for w.deliver() {
	}
	w.conn.Close()
	w.cmd.Process.Kill() // it ends by itself when the socket closes; a hung one is made to
	if err := w.cmd.Wait(); err != nil {
		w.setReason("worker process: " + err.Error())
	}
	close(w.done)
}

// deliver takes one message and reports whether others may follow. A guest may have taken the worker over, so
// nothing that comes may stop the node or keep it busy, and no reply may be taken for another's.
func (w *Worker) deliver() bool {
	var m message
	files, err := receive(w.conn, &m)
	if err != nil {
		return false
	}
	closeAll(files) // a worker has no business sending any
	switch {
	case m.Exited != "":
		w.setReason(m.Exited)
		return false
	case m.Ready && !m.Reply && !w.isReady():
		close(w.ready)
		return true
	case m.Reply && !m.Ready && w.answered():
		w.replies <- m // never waits: one request, one place
		return true
	}
	w.setReason("the worker broke the protocol: a message that was not due")
	return false
}

func (w *Worker) isReady() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// ask notes that a reply is due; answered reports whether one was, and that it has come.
func (w *Worker) ask() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = true
}

func (w *Worker) answered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.asked
	w.asked = false
	return due
}

func (w *Worker) setReason(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reason == "" {
		w.reason = reason
	}
}

// WaitReady returns when the worker can be claimed, or with an error if it ends or stop closes before.
func (w *Worker) WaitReady(stop <-chan struct{}) error {
	select {
	case <-w.ready:
		return nil
	case <-w.done:
		return w.Err()
	case <-stop:
		return context.Canceled
	}
}

// Done is closed when the process has ended and been reaped.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Err says why the machine ended; it wraps ErrExited.
func (w *Worker) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reason == "" {
		return ErrExited
	}
	return fmt.Errorf("%w: %s", ErrExited, w.reason)
}

// Kill ends the worker and its machine at once. It does not wait; Done tells.
func (w *Worker) Kill() {
	w.setReason("killed")
	w.cmd.Process.Kill()
}

// PID returns the process's ID.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Network is a machine's connection. The zero value is a machine without a network card.
type Network struct {
	// Card is the network card; it is part of the template.
	Card *Card
	// Tap is what the card is connected to; nil for nothing.
	Tap *os.File
}

// request adds the network to a request.
func (n Network) request(r request, files []*os.File) (request, []*os.File) {
	r.Card = n.Card
	if n.Card != nil && n.Tap != nil {
		r.Tap, files = true, append(files, n.Tap)
	}
	return r, files
}

// BootFiles are what a cold boot needs. Console may be nil; it gets the guest's serial output.
type BootFiles struct {
	Kernel, Initrd, Disk, Listener, Console *os.File
	Network                                 Network
}

// Boot starts the guest kernel and returns when its vCPUs run. The files stay the caller's.
func (w *Worker) Boot(ctx context.Context, f BootFiles, cmdline string) error {
	files := []*os.File{f.Kernel, f.Initrd, f.Disk, f.Listener}
	if f.Console != nil {
		files = append(files, f.Console)
	}
	r, files := f.Network.request(request{Op: opBoot, Cmdline: cmdline}, files)
	_, err := w.do(ctx, r, files...)
	return err
}

// RestoreFiles are what a restore needs.
type RestoreFiles struct {
	State, Memory, Disk, Listener *os.File
	Network                       Network
}

// Restore makes the machine a clone of a snapshot and returns, with the time of each step, when its vCPUs
// run. The pages of the working set, which is encoded and may be nil, are prepared before. The files stay the
// caller's.
func (w *Worker) Restore(ctx context.Context, f RestoreFiles, workingSet []byte) ([]Step, error) {
	m, err := w.restore(ctx, request{Op: opRestore, WorkingSet: workingSet}, f)
	return m.Steps, err
}

// RestoreRecorded is Restore of a machine whose working set Touched will be asked for. It runs slower.
func (w *Worker) RestoreRecorded(ctx context.Context, f RestoreFiles) error {
	_, err := w.restore(ctx, request{Op: opRestore, Record: true}, f)
	return err
}

func (w *Worker) restore(ctx context.Context, r request, f RestoreFiles) (message, error) {
	r, files := f.Network.request(r, []*os.File{f.State, f.Memory, f.Disk, f.Listener})
	return w.do(ctx, r, files...)
}

// Touched writes the encoded working set of a machine restored by RestoreRecorded to an empty file.
func (w *Worker) Touched(ctx context.Context, out *os.File) error {
	_, err := w.do(ctx, request{Op: opTouched}, out)
	return err
}

// Save stops the machine for good and writes its state and memory to two empty files.
func (w *Worker) Save(ctx context.Context, state, memory *os.File) (memsnap.MemoryInfo, error) {
	m, err := w.do(ctx, request{Op: opSave}, state, memory)
	if err != nil {
		return memsnap.MemoryInfo{}, err
	}
	if m.Memory == nil {
		return memsnap.MemoryInfo{}, errors.New("save: the worker sent no memory information")
	}
	return *m.Memory, nil
}

// do sends one request and waits for its reply. A request that was given up on leaves the worker in an
// unknown state, so it is killed.
func (w *Worker) do(ctx context.Context, r request, files ...*os.File) (message, error) {
	w.call.Lock()
	defer w.call.Unlock()
	if w.givenUp {
		return message{}, fmt.Errorf("%s: %w", r.Op, w.Err())
	}
	select {
	case <-w.ready:
	case <-w.done:
		return message{}, fmt.Errorf("%s: %w", r.Op, w.Err())
	case <-ctx.Done():
		w.Kill()
		return message{}, fmt.Errorf("%s: worker did not get ready: %w", r.Op, ctx.Err())
	}
	w.ask()
	if err := send(w.conn, r, files...); err != nil {
		w.Kill()
		<-w.done // its socket is closed or about to be
		return message{}, fmt.Errorf("%s: %w: %w", r.Op, w.Err(), err)
	}
	select {
	case m := <-w.replies:
		if m.Error != "" {
			return m, fmt.Errorf("%s: %s", r.Op, m.Error)
		}
		return m, nil
	case <-w.done:
		return message{}, fmt.Errorf("%s: %w", r.Op, w.Err())
	case <-ctx.Done():
		w.givenUp = true
		w.Kill()
		return message{}, fmt.Errorf("%s: no reply: %w", r.Op, ctx.Err())
	}
}
