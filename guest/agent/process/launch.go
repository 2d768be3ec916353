package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// launch starts what req asks for as u, to be killed after timeout unless that is 0. sub is the caller's,
// subscribed before the process runs: it misses nothing.
func (s *Service) launch(u *accounts.User, req *e2b.StartRequest, sub *subscriber, timeout time.Duration) (*proc, error) {
	if req.Process == nil || req.Process.Cmd == "" {
		return nil, rpc.Errorf(rpc.InvalidArgument, "process.cmd is missing")
	}
	cwd, err := s.workdir(u, req.Process.Cwd)
	if err != nil {
		return nil, err
	}
	env := s.ident.Environ(u, req.Process.Envs)
	path, err := lookPath(req.Process.Cmd, env["PATH"], cwd)
	if err != nil {
		return nil, err
	}
	p := &proc{service: s, config: req.Process, tag: req.Tag, out: fanout{stall: stallLimit}}
	p.out.subscribe(sub)
	stdio, err := p.openStdio(req, u)
	if err != nil {
		return nil, startError(err)
	}
	defer stdio.closeChildEnds()
	attr := stdio.attributes(u)
	attr.Dir = cwd
	for k, v := range env {
		attr.Env = append(attr.Env, k+"="+v)
	}
	argv := append([]string{req.Process.Cmd}, req.Process.Args...)
	if err := p.spawn(path, argv, attr); err != nil {
		stdio.closeOurEnds()
		return nil, startError(err)
	}
	if timeout > 0 {
		sub.owner = true
		p.killAfter(timeout)
	}
	s.add(p)
	go p.watch(stdio.outputs)
	return p, nil
}

// spawn forks into a cgroup of its own, if there are cgroups.
func (p *proc) spawn(path string, argv []string, attr *syscall.ProcAttr) error {
	var group *cgroup.Group
	if p.service.groups != nil {
		var err error
		if group, err = p.service.groups.Get(); err != nil {
			return err
		}
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, group.FD()
	}
	child, err := p.service.reaper.Start(path, argv, attr)
	if err != nil {
		if group != nil {
			group.Release()
		}
		return err
	}
	p.child, p.group = child, group
	return nil
}

// workdir resolves and checks a process's working directory.
func (s *Service) workdir(u *accounts.User, cwd *string) (string, error) {
	dir := "."
	if cwd != nil && *cwd != "" {
		dir = *cwd
	}
	dir, err := s.ident.Path(u, dir)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", rpc.Errorf(rpc.InvalidArgument, "cwd '%s' does not exist", dir)
	case err != nil:
		return "", rpc.Errorf(rpc.InvalidArgument, "cwd '%s': %v", dir, err)
	case !info.IsDir():
		return "", rpc.Errorf(rpc.InvalidArgument, "cwd '%s' is not a directory", dir)
	}
	return dir, nil
}

// lookPath finds an executable in the PATH that the process itself will have.
func lookPath(cmd, path, cwd string) (string, error) {
	if strings.Contains(cmd, "/") {
		if !filepath.IsAbs(cmd) {
			cmd = filepath.Join(cwd, cmd)
		}
		return cmd, nil // exec tells best what is wrong with it
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		full := filepath.Join(dir, cmd)
		if info, err := os.Stat(full); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", rpc.Errorf(rpc.InvalidArgument, "exec: %q: executable file not found in $PATH", cmd)
}

// startError gives a failed start its code: what may go away by itself is resource_exhausted.
func startError(err error) error {
	for _, e := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOSPC} {
		if errors.Is(err, e) {
			return rpc.Errorf(rpc.ResourceExhausted, "error starting process: %v", err)
		}
	}
	return rpc.Errorf(rpc.InvalidArgument, "error starting process: %v", err)
}

// stdio holds both sides of a new process's files.
type stdio struct {
	// child are fds 0, 1 and 2 of the process; owned are those that must be closed here after the fork.
	child   [3]int
	owned   []int
	outputs []output
	ours    []*os.File
	pty     bool
}

func (s *stdio) closeChildEnds() {
	for _, fd := range s.owned {
		unix.Close(fd)
	}
}

func (s *stdio) closeOurEnds() {
	for _, f := range s.ours {
		f.Close()
	}
}

// attributes says how the process is to be forked: own session, the user's credentials.
func (s *stdio) attributes(u *accounts.User) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: s.pty}
	if os.Geteuid() == 0 {
		sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	files := []uintptr{uintptr(s.child[0]), uintptr(s.child[1]), uintptr(s.child[2])}
	return &syscall.ProcAttr{Files: files, Sys: sys}
}

// openStdio makes the terminal or pipes that req asks for.
func (p *proc) openStdio(req *e2b.StartRequest, u *accounts.User) (*stdio, error) {
	s := &stdio{}
	var err error
	if req.PTY != nil {
		err = p.openPTY(s, req.PTY.Size, u)
	} else {
		err = p.openPipes(s, req.Stdin == nil || *req.Stdin)
	}
	if err != nil {
		s.closeChildEnds()
		s.closeOurEnds()
		return nil, err
	}
	return s, nil
}

func (p *proc) openPTY(s *stdio, size *e2b.PTYSize, u *accounts.User) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	// A dup of the bare descriptor: the *os.File would put it into non-blocking mode under the process.
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	name := theirs.Name()
	theirs.Close()
	s.ours = []*os.File{ours}
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	s.owned = []int{fd}
	// Programs such as sudo and tmux open the terminal again by name, as the user.
	if err := unix.Fchown(fd, int(u.UID), -1); err != nil && os.Geteuid() == 0 {
		return fmt.Errorf("give %s to %s: %w", name, u.Name, err)
	}
	if size != nil {
		if err := pty.Setsize(ours, winsize(size)); err != nil {
			return fmt.Errorf("set terminal size: %w", err)
		}
	}
	p.pty, s.pty, s.child = ours, true, [3]int{fd, fd, fd}
	s.outputs = []output{{ours, maxPTYChunk, ptyData}}
	return nil
}

func (p *proc) openPipes(s *stdio, stdin bool) error {
	if stdin {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("open stdin: %w", err)
		}
		s.child[0], s.owned = fds[0], append(s.owned, fds[0])
		p.stdin = pollable(fds[1], "stdin")
		s.ours = append(s.ours, p.stdin)
	} else {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		s.child[0], s.owned = fd, append(s.owned, fd)
	}
	for i, wrap := range []func(rpc.Bytes) *e2b.DataEvent{stdoutData, stderrData} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("open output: %w", err)
		}
		s.child[i+1], s.owned = fds[1], append(s.owned, fds[1])
		file := pollable(fds[0], "output")
		s.ours = append(s.ours, file)
		s.outputs = append(s.outputs, output{file, maxChunk, wrap})
	}
	return nil
}

// pollable hands our end of a pipe to the runtime's poller; the other end stays blocking.
func pollable(fd int, name string) *os.File {
	unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}
