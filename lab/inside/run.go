package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"cella.dev/cella/lab/proto"
)

// run runs the command, passes its output on, and returns when it, everything it left behind and all output
// are gone.
func run(conn *proto.Conn, req proto.StartRequest) (proto.ExitStatus, error) {
	var s streams
	defer s.closeAll()
	cmd := &exec.Cmd{Args: req.Args, Env: req.Env, Dir: req.Dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	var err error
	if cmd.Path, err = lookPath(req.Args[0], req.Env); err != nil {
		// As a shell does.
		fmt.Fprintf(conn.Writer(proto.Stderr), "cella lab: %v\n", err)
		return proto.ExitStatus{Code: 127, BootNano: uptime()}, nil
	}
	if req.Terminal != nil {
		err = s.terminal(cmd, *req.Terminal)
	} else {
		err = s.pipes(cmd, req.Stdin)
	}
	if err != nil {
		return proto.ExitStatus{}, err
	}
	status := proto.ExitStatus{BootNano: uptime()}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(conn.Writer(proto.Stderr), "cella lab: %v\n", err)
		status.Code = 126
		return status, nil
	}
	s.closeTheirs()
	var output sync.WaitGroup
	s.pump(conn, &output)
	go s.input(conn)
	ws, err := reapUntil(cmd.Process.Pid)
	status.RunNano = uptime() - status.BootNano
	if err != nil {
		return status, err
	}
	// What the command left in the background holds the pipes open. It ends with the command, which also
	// makes the end of the output a fact and not a guess.
	unix.Kill(-1, unix.SIGKILL)
	output.Wait()
	status.Code = ws.ExitStatus()
	if ws.Signaled() {
		status.Code = 128 + int(ws.Signal())
	}
	return status, nil
}

// lookPath finds the program in the PATH that it will run with.
func lookPath(name string, env []string) (string, error) {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			os.Setenv("PATH", value)
		}
	}
	return exec.LookPath(name)
}

// reapUntil waits for all children, as the first process must, until pid has ended.
func reapUntil(pid int) (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return ws, fmt.Errorf("wait for the command: %w", err)
		case got == pid:
			return ws, nil
		}
	}
}

// uptime is the time since the lab's kernel started, in nanoseconds.
func uptime() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // Cannot fail with this clock.
	return ts.Nano()
}

// streams are the two ends of a command's standard files.
type streams struct {
	theirs, ours []*os.File
	stdin        *os.File // nil where the command reads nothing of ours
	stdout       *os.File
	stderr       *os.File // nil with a terminal
	tty          *os.File // nil without one
}

func (s *streams) terminal(cmd *exec.Cmd, size proto.Size) error {
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	s.ours, s.theirs = append(s.ours, ptmx), append(s.theirs, tty)
	s.stdin, s.stdout, s.tty = ptmx, ptmx, ptmx
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr.Setctty = true
	return pty.Setsize(ptmx, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
}

func (s *streams) pipes(cmd *exec.Cmd, stdin bool) error {
	for _, end := range []struct {
		ours   **os.File
		theirs func(*os.File)
	}{
		{&s.stdout, func(f *os.File) { cmd.Stdout = f }},
		{&s.stderr, func(f *os.File) { cmd.Stderr = f }},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.ours, s.theirs = append(s.ours, r), append(s.theirs, w)
		*end.ours = r
		end.theirs(w)
	}
	if !stdin {
		return nil // exec.Cmd then opens /dev/null.
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	s.ours, s.theirs = append(s.ours, w), append(s.theirs, r)
	s.stdin, cmd.Stdin = w, r
	return nil
}

func (s *streams) pump(conn *proto.Conn, wg *sync.WaitGroup) {
	pass := func(t proto.Type, f *os.File) {
		// A terminal ends with EIO and a pipe with EOF; both are the end of the output.
		wg.Go(func() { io.Copy(conn.Writer(t), struct{ io.Reader }{f}) })
	}
	pass(proto.Stdout, s.stdout)
	if s.stderr != nil {
		pass(proto.Stderr, s.stderr)
	}
}

// input passes on what the host sends, until the port closes.
func (s *streams) input(conn *proto.Conn) {
	for {
		t, payload, err := conn.Receive()
		if err != nil {
			return
		}
		switch {
		case t == proto.Stdin && s.stdin != nil:
			s.stdin.Write(payload) // A command that does not read is not an error.
		case t == proto.StdinEnd && s.stdin != nil && s.tty == nil:
			s.stdin.Close()
		case t == proto.Resize && s.tty != nil:
			var size proto.Size
			if json.Unmarshal(payload, &size) == nil {
				pty.Setsize(s.tty, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
			}
		}
	}
}

func (s *streams) closeTheirs() { closeFiles(&s.theirs) }

func (s *streams) closeAll() {
	closeFiles(&s.theirs)
	closeFiles(&s.ours)
}

func closeFiles(files *[]*os.File) {
	for _, f := range *files {
		f.Close()
	}
	*files = nil
}
