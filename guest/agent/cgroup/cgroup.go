// Package cgroup puts each user process and all its descendants into a cgroup of their own, so that they
// can be frozen and killed as one, however they fork. (cgroup v2, Documentation/admin-guide/cgroup-v2.rst)
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ready is how many groups wait prepared, so that starting a process need not make one.
const ready = 4

// A Parent holds the groups of all user processes.
type Parent struct {
	dir  string
	pool chan *Group

	mu sync.Mutex
	// next numbers the groups.
	next int
	// lingering are groups whose leader has ended while descendants live on.
	lingering map[string]bool
}

// A Group is one process's cgroup.
type Group struct {
	parent *Parent
	path   string
	// dir is open on path, for clone3's CLONE_INTO_CGROUP.
	dir *os.File
}

// Mounted finds where cgroup v2 is mounted.
func Mounted() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("find cgroup2 mount: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", errors.New("find cgroup2 mount: none; mount one with: mount -t cgroup2 none /sys/fs/cgroup")
}

// Open makes the parent group name below mount, and proves that groups can be killed in it.
func Open(mount, name string) (*Parent, error) {
	p := &Parent{
		dir:       filepath.Join(mount, name),
		pool:      make(chan *Group, ready),
		lingering: map[string]bool{},
	}
	if err := os.Mkdir(p.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	if err := unix.Access(filepath.Join(p.dir, "cgroup.kill"), unix.W_OK); err != nil {
		return nil, fmt.Errorf("cgroup %s: cgroup.kill: %w; it needs Linux 5.14 and a writable cgroup v2", p.dir, err)
	}
	return p, p.refill()
}

func (p *Parent) create() (*Group, error) {
	for {
		p.mu.Lock()
		p.next++
		path := filepath.Join(p.dir, strconv.Itoa(p.next))
		p.mu.Unlock()
		switch err := os.Mkdir(path, 0o755); {
		case errors.Is(err, os.ErrExist):
			continue // left by an agent before this one
		case err != nil:
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open cgroup: %w", err)
		}
		return &Group{parent: p, path: path, dir: dir}, nil
	}
}

// refill prepares groups until the pool is full.
func (p *Parent) refill() error {
	for {
		g, err := p.create()
		if err != nil {
			return err
		}
		select {
		case p.pool <- g:
		default:
			g.Release()
			return nil
		}
	}
}

// Get returns an empty group, prepared if one is left.
func (p *Parent) Get() (*Group, error) {
	select {
	case g := <-p.pool:
		return g, nil
	default:
		return p.create()
	}
}

// Prepare tops the parent's pool up with one group. Call it when nobody waits.
func (g *Group) Prepare() { g.parent.prepare() }

func (p *Parent) prepare() {
	if len(p.pool) == cap(p.pool) {
		return
	}
	g, err := p.create()
	if err != nil {
		return // Get will meet the same error and report it
	}
	select {
	case p.pool <- g:
	default:
		g.Release()
	}
}

// FD is the group's directory, for SysProcAttr.CgroupFD.
func (g *Group) FD() int { return int(g.dir.Fd()) }

// Kill sends SIGKILL to every process in the group, new forks included.
func (g *Group) Kill() error {
	return write(filepath.Join(g.path, "cgroup.kill"), "1")
}

// Release removes the group now, or when the last of its processes has gone.
func (g *Group) Release() {
	g.dir.Close()
	p := g.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lingering[g.path] = true
	for path := range p.lingering {
		if err := os.Remove(path); err == nil || errors.Is(err, os.ErrNotExist) {
			delete(p.lingering, path)
		}
	}
}

// Close kills every process in the parent's groups and removes the groups. wait must return when the
// killed have been reaped.
func (p *Parent) Close(wait func()) error {
	if err := write(filepath.Join(p.dir, "cgroup.kill"), "1"); err != nil {
		return fmt.Errorf("close cgroups: %w", err)
	}
	wait()
	groups, err := filepath.Glob(filepath.Join(p.dir, "*", "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("close cgroups: %w", err)
	}
	for _, procs := range groups {
		if err := os.Remove(filepath.Dir(procs)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("close cgroups: %w", err)
		}
	}
	if err := os.Remove(p.dir); err != nil {
		return fmt.Errorf("close cgroups: %w", err)
	}
	return nil
}

// Freeze stops every user process, and returns when the kernel says that all have stopped.
func (p *Parent) Freeze(ctx context.Context) error {
	events, err := os.Open(filepath.Join(p.dir, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	defer events.Close()
	if err := write(filepath.Join(p.dir, "cgroup.freeze"), "1"); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	buf := make([]byte, 256)
	for {
		n, err := events.ReadAt(buf, 0)
		if n == 0 {
			return fmt.Errorf("freeze: read cgroup.events: %w", err)
		}
		if strings.Contains(string(buf[:n]), "frozen 1") {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("freeze: processes still run: %w", ctx.Err())
		}
		// The kernel raises POLLPRI whenever the file's content changes.
		fds := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		unix.Poll(fds, int((100 * time.Millisecond).Milliseconds()))
	}
}

// Thaw lets user processes run again.
func (p *Parent) Thaw() error {
	return write(filepath.Join(p.dir, "cgroup.freeze"), "0")
}

// write stores a value in a control file: the kernel wants it in one write.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}
