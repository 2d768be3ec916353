//go:build e2e

package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/internal/agentrpc"
	"cella.dev/cella/node"
)

// pokeDevices writes random numbers over every register of every virtio device, whose drivers it lets go of first
// because the kernel keeps what a driver holds from /dev/mem.
const pokeDevices = `
import glob, mmap, os, random, re, struct, time
found = [int(m.group(1), 16) for m in (re.match(r'\s*([0-9a-f]+)-[0-9a-f]+ : .*LNRO0005', l) for l in open('/proc/iomem')) if m]
mem = os.open('/dev/mem', os.O_RDWR | os.O_SYNC)
if os.fork(): os._exit(0)
os.setsid()
for d in glob.glob('/sys/bus/platform/drivers/virtio-mmio/LNRO*'):
    try: open('/sys/bus/platform/drivers/virtio-mmio/unbind', 'w').write(os.path.basename(d))
    except OSError: pass
windows = []
for base in found:
    try: windows.append(mmap.mmap(mem, 4096, offset=base))
    except OSError: pass
end = time.time() + 3
while windows and time.time() < end:
    w = random.choice(windows)
    try: struct.pack_into('<I', w, random.randrange(0, 0x200, 4), random.choice([0, 1, 0xf, 0xffffffff, random.getrandbits(32)]))
    except OSError: pass
`

const floodVsock = `
import socket, threading, time
end = time.time() + 3
def flood():
    while time.time() < end:
        for port in (1, 1024, 1025, 49983, 2**32 - 2):
            s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            s.settimeout(1)
            try: s.connect((2, port)); s.send(b'x' * 100000)
            except OSError: pass
            s.close()
for _ in range(8): threading.Thread(target=flood).start()
`

const seizeAgent = `
import ctypes, time
libc = ctypes.CDLL(None)
libc.ptrace(16, 1, 0, 0)
time.sleep(60)
`

// TestHostileRoot lets root do its worst in a sandbox. Whatever becomes of that one, its neighbour goes on, it can
// be killed, and nothing is left.
func TestHostileRoot(t *testing.T) {
	n := open(t, node.Options{})
	neighbour := create(t, n, node.CreateRequest{})
	sh(t, n, neighbour, "true")
	files, processes := openFiles(t), len(children(t))
	for _, tc := range []struct {
		name, line string
		want       string // ends, lives, or empty where either is right
	}{
		{"panic", "echo c > /proc/sysrq-trigger", "ends"},
		{"reset", "echo b > /proc/sysrq-trigger", "ends"},
		{"signals to PID 1", "kill -STOP 1; kill -9 1", "lives"},
		{"kill everything", "kill -9 -1", "lives"},
		{"fork bomb", ":(){ :|:& };:", ""},
		{"out of memory", "tail /dev/zero", "lives"},
		{"sockets to the host", "python3 -c \"$CODE\"", ""},
		{"registers of devices", "python3 -c \"$CODE\"", ""},
		{"debugger on the agent", "python3 -c \"$CODE\"", ""},
		{"frozen cgroups", "for f in $(find /sys/fs/cgroup -name cgroup.freeze); do echo 1 > $f; done", ""},
		{"full disk", "head -c 200M /dev/zero > /fill; fallocate -l 100G /more; sync", ""},
		{"full /run", "head -c 1G /dev/zero > /run/fill", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := create(t, n, node.CreateRequest{})
			c := agentrpc.Shell(tc.line)
			c.User = "root"
			c.Env = map[string]string{"CODE": map[string]string{
				"sockets to the host": floodVsock, "registers of devices": pokeDevices, "debugger on the agent": seizeAgent,
			}[tc.name]}
			start := time.Now()
			attempt(n, s, c, 8*time.Second)
			t.Logf("attacked for %v", time.Since(start))
			got := "lives"
			if out, err := attempt(n, s, agentrpc.Shell("echo alive"), 15*time.Second); out != "alive\n" {
				got = "hangs"
				if errors.Is(err, node.ErrNotFound) {
					got = "ends"
				}
				t.Logf("after it: %q %v", out, err)
			}
			t.Logf("the sandbox %s", got)
			if tc.want != "" && got != tc.want {
				t.Errorf("the sandbox %s, want that it %s", got, tc.want)
			}
			if err := n.Kill(t.Context(), s.ID); err != nil && !errors.Is(err, node.ErrNotFound) {
				t.Errorf("kill: %v", err)
			}
			if out, err := attempt(n, neighbour, agentrpc.Shell("echo alive"), 15*time.Second); out != "alive\n" {
				t.Fatalf("the neighbour: %q %v", out, err)
			}
		})
	}
	within(t, "all processes but the neighbour's end", func() bool { return len(children(t)) <= processes })
	within(t, "descriptors are closed", func() bool { return openFiles(t) <= files+1 })
	if list := n.List(); len(list) != 1 {
		t.Errorf("%d sandboxes are listed, want the neighbour alone", len(list))
	}
}

// attempt runs a command that may fail in any way, in bounded time.
func attempt(n *node.Node, s node.Sandbox, c agentrpc.Command, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := n.Dial(ctx, s.ID, wire.PortAgent)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	c.Token = s.AccessToken
	var out bytes.Buffer
	_, err = agentrpc.Run(ctx, conn, c, agentrpc.Output{Stdout: &out, Stderr: io.Discard})
	return out.String(), err
}

// children lists the workers of this process.
func children(t *testing.T) []int {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, name := range names {
		data, _ := os.ReadFile(name) // a thread may have ended
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// within waits for what nothing tells of.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("not after 20 s: %s", what)
			return
		}
	}
}

func TestStoppedWorkerHoldsNobody(t *testing.T) {
	n := open(t, node.Options{CreateTimeout: 5 * time.Second})
	s := create(t, n, node.CreateRequest{})
	sh(t, n, s, "true")
	for _, pid := range children(t) {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if _, err := attempt(n, s, agentrpc.Shell("true"), 2*time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("command in a stopped worker: %v, want a deadline", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("gave up after %v, want 2 s", took)
	}
	if err := n.Kill(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	within(t, "the stopped worker ends", func() bool { return len(children(t)) == 0 })
}

// TestWorkersDieDuringCreates kills workers at every stage. Each create either fails or gives a sandbox that is
// alive or soon known to be dead.
func TestWorkersDieDuringCreates(t *testing.T) {
	n := open(t, node.Options{PoolMin: 2, PoolMax: 4, CreateTimeout: 20 * time.Second})
	stop := make(chan struct{})
	var killer, wg sync.WaitGroup
	killer.Go(func() {
		tick := time.NewTicker(60 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				for _, pid := range children(t) {
					unix.Kill(pid, unix.SIGKILL)
				}
			}
		}
	})
	var made, failed int
	var mu sync.Mutex
	for range 3 {
		wg.Go(func() {
			for range 15 {
				_, err := n.Create(context.Background(), node.CreateRequest{Template: "base", Timeout: time.Hour})
				mu.Lock()
				if err == nil {
					made++
				} else {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	within(t, "dead sandboxes are forgotten", func() bool { return len(n.List()) == 0 })
	close(stop)
	killer.Wait()
	t.Logf("%d creates succeeded, %d failed", made, failed)
	s := create(t, n, node.CreateRequest{})
	sh(t, n, s, "true")
}

func TestFullStateDisk(t *testing.T) {
	dir := state(t)
	n := open(t, node.Options{})
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filler.Name())
	defer filler.Close()
	var size int64
	for step := int64(1 << 30); step >= 4096; {
		if err := unix.Fallocate(int(filler.Fd()), 0, size, step); err == nil {
			size += step
		} else {
			step /= 2
		}
	}
	files := openFiles(t)
	spec := baseSpec("full")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if _, err := n.BuildTemplate(ctx, spec); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("build on a full disk: %v, want ENOSPC", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "templates", ".build*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	s, err := n.Create(ctx, node.CreateRequest{Template: "base", Timeout: time.Hour})
	t.Logf("create on a full disk: %v", err)
	if err == nil {
		out, err := attempt(n, s, agentrpc.Shell("echo read; head -c 1M /dev/zero > f; sync"), 20*time.Second)
		t.Logf("command on a full disk: %q %v", out, err)
		if err := n.Kill(ctx, s.ID); err != nil && !errors.Is(err, node.ErrNotFound) {
			t.Error(err)
		}
	}
	if err := filler.Truncate(0); err != nil {
		t.Fatal(err)
	}
	again := create(t, n, node.CreateRequest{})
	sh(t, n, again, "echo hi > f && sync")
	if err := n.Kill(t.Context(), again.ID); err != nil {
		t.Error(err)
	}
	within(t, "descriptors are closed", func() bool { return openFiles(t) <= files+1 })
}
