package netvs

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChurnLeavesNothing attaches, changes and closes many sandboxes at once.
func TestChurnLeavesNothing(t *testing.T) {
	newWorld(t)
	dir := t.TempDir()
	before := hostState(t, dir)
	n, err := Open(Config{PinDir: dir, Pool: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	events := make(chan Denied, 16)
	go n.Events(func(d Denied) { events <- d })
	var users sync.WaitGroup
	for u := range 6 {
		users.Go(func() {
			for i := range 5 {
				if err := live(n, fmt.Sprintf("%d-%d", u, i), i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	if k := countPins(t, n); k != 0 {
		t.Errorf("%d addresses are pinned to nobody", k)
	}
	if err := n.Remove(); err != nil {
		t.Error(err)
	}
	if after := hostState(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

// live is a sandbox's short life.
func live(n *Network, id string, i int) error {
	s, err := n.Attach(id, &Policy{Internet: true, Deny: []Rule{{Prefix: everything}}, Names: []string{"example.org"}})
	if err != nil {
		return err
	}
	if err := s.pin("example.org", []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}, 0); err != nil {
		return err
	}
	for k := range 3 {
		if err := s.SetPolicy(manyRules(10 * (k + 1))); err != nil {
			return err
		}
	}
	if _, err := s.Stats(); err != nil {
		return err
	}
	return s.Close()
}

// crashDir names, in the environment of a process, the directory in which it is to crash.
const crashDir = "NETVS_TEST_CRASH"

// crash attaches two sandboxes, prints the tap of the first, and dies as by kill -9.
func crash(dir string) error {
	n, err := Open(Config{PinDir: dir, Pool: 2})
	if err != nil {
		return err
	}
	s, err := n.Attach("a", &Policy{Internet: true, Deny: manyRules(3).Deny})
	if err != nil {
		return err
	}
	if _, err := n.Attach("b", &Policy{}); err != nil {
		return err
	}
	fmt.Println(s.Tap())
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

func TestCrashedProcessLeavesNothingUnknown(t *testing.T) {
	newWorld(t)
	dir := t.TempDir()
	before := hostState(t, dir)
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), crashDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.Output()
	if child.ProcessState == nil || child.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the crash went wrong: %v", err)
	}
	n, err := Open(Config{PinDir: dir, Pool: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := n.Adopt("a", strings.TrimSpace(string(out)), &Policy{Internet: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Adopt("b", "cella1", &Policy{}); err == nil {
		t.Error("a tap that was swept away could be adopted")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Remove(); err != nil {
		t.Error(err)
	}
	if after := hostState(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

func TestLargestPolicy(t *testing.T) {
	b := newBench(t)
	p := manyRules(MaxRules)
	b.attach(t, p)
	last := lastOf(p.Deny[MaxRules-1].Prefix)
	b.check(t, b.FromGuest, 0, []packetCase{
		refuse("last address of the last rule", DropPolicy, probe(last.String(), TCP, 80)),
		pass("the one after it", probe(last.Next().String(), TCP, 80),
			fromGuest(ip4(header{src: hostSide, dst: last.Next().String(), protocol: TCP}, tcp(hostSide, last.Next().String(), 40000, 80, 2, nil)))),
	})
}
