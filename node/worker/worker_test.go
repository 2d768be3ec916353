package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/vmm"
)

// TestMain lets the test binary be its own worker process, as cella is.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "vmm" && os.Args[2] == hostileVCPUs {
		misbehave(os.Args[3])
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == "vmm" {
		vcpus, _ := strconv.Atoi(os.Args[2])
		memory, _ := strconv.ParseUint(os.Args[3], 10, 64)
		if err := Serve(vmm.Shape{VCPUs: vcpus, MemoryBytes: memory}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, shape vmm.Shape) *Worker {
	t.Helper()
	w, err := Start(shape)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Kill(); <-w.Done() })
	return w
}

func ended(t *testing.T, w *Worker) {
	t.Helper()
	select {
	case <-w.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the worker did not end")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", w.PID())); !os.IsNotExist(err) {
		t.Errorf("process %d is still there: %v", w.PID(), err)
	}
}

var small = vmm.Shape{VCPUs: 1, MemoryBytes: 128 << 20}

func TestWorkerEndsWhenKilled(t *testing.T) {
	w := start(t, small)
	if err := w.WaitReady(nil); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	ended(t, w)
	if err := w.Err(); !errors.Is(err, ErrExited) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err() = %v", err)
	}
	if _, err := w.Restore(t.Context(), RestoreFiles{}, nil); err == nil {
		t.Error("a dead worker restored")
	}
}

func TestWorkerEndsWithItsControlSocket(t *testing.T) {
	w := start(t, small)
	if err := w.WaitReady(nil); err != nil {
		t.Fatal(err)
	}
	// What the kernel does when the node dies.
	w.conn.Close()
	ended(t, w)
}

func TestRefusedRequestsLeaveTheWorkerUsable(t *testing.T) {
	w := start(t, small)
	empty, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	_, err = w.Restore(t.Context(), RestoreFiles{State: empty, Memory: empty, Disk: empty, Listener: empty}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "restore: ") {
		t.Errorf("restore of an empty state: %v", err)
	}
	if _, err := w.do(t.Context(), request{Op: "fly"}); err == nil || !strings.Contains(err.Error(), `"fly"`) {
		t.Errorf("unknown operation: %v", err)
	}
}

func TestImpossibleShape(t *testing.T) {
	w := start(t, vmm.Shape{VCPUs: 1000, MemoryBytes: 128 << 20})
	ended(t, w)
	if err := w.WaitReady(nil); err == nil || !strings.Contains(err.Error(), "1000 vCPUs") {
		t.Errorf("WaitReady: %v, want the reason", err)
	}
}

func TestDeadlineKillsTheWorker(t *testing.T) {
	w := start(t, small)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	empty, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := w.Save(ctx, empty, empty); !errors.Is(err, context.Canceled) {
		t.Errorf("Save with a cancelled context: %v", err)
	}
	ended(t, w)
}

// hostileVCPUs makes the test binary a worker that was taken over; its memory size says what it sends.
const hostileVCPUs = "666"

// hostileMessages are what such a worker sends at its start. It then sends one reply to each request.
var hostileMessages = [][]string{
	{`{"ready":true}`, `{"ready":true}`},
	{`{"ready":true}`, `{"reply":true}`},
	{`{"reply":true}`, `{"reply":true}`, `{"reply":true}`, `{"reply":true}`},
	{`{"ready":true,"reply":true}`},
	{`{"exited":"one"}`, `{"exited":"two"}`, `{"ready":true}`, `{"ready":true}`},
	{`{}`},
	{`{`},
	{`null`, `[]`},
	{``},
}

func misbehave(number string) {
	n, _ := strconv.Atoi(number)
	conn, err := unixConn(os.NewFile(controlFD, "control"))
	if err != nil {
		os.Exit(1)
	}
	for _, m := range hostileMessages[n] {
		conn.Write([]byte(m))
	}
	for {
		if _, err := receive(conn, new(request)); err != nil {
			time.Sleep(time.Hour) // a worker that does not end by itself
		}
		for range 3 {
			conn.Write([]byte(`{"reply":true}`))
		}
	}
}

// TestHostileWorker lets workers say what no worker says. The node must go on, take no message for the answer to
// another, and reap the process.
func TestHostileWorker(t *testing.T) {
	before := openFiles(t)
	for i, messages := range hostileMessages {
		t.Run(strings.Join(messages, " "), func(t *testing.T) {
			w := start(t, vmm.Shape{VCPUs: 666, MemoryBytes: uint64(i)})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			for range 3 {
				w.do(ctx, request{Op: "fly"}) // may work once: the first reply was due
			}
			ended(t, w)
			if _, err := w.do(ctx, request{Op: "fly"}); !errors.Is(err, ErrExited) {
				t.Errorf("request after its end: %v", err)
			}
		})
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestReadyWorkerHasNothingLeft looks from outside at what a guest that took its worker over would have.
func TestReadyWorkerHasNothingLeft(t *testing.T) {
	w := start(t, small)
	if err := w.WaitReady(nil); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(jailUIDBase + w.PID())
	ids := strings.Join([]string{id, id, id, id}, "\t")
	for _, want := range []string{
		"Uid:\t" + ids, "Gid:\t" + ids, "Groups:\t \n", "NoNewPrivs:\t1\n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", w.PID()))
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, name := range threads {
		thread, err := os.ReadFile(name)
		if strings.HasPrefix(string(thread), "Name:\tkvm-") {
			continue // KVM's own, which runs kernel code alone
		}
		if err == nil && (!strings.Contains(string(thread), "Uid:\t"+ids) || !strings.Contains(string(thread), "NoNewPrivs:\t1\n")) {
			t.Errorf("%s is not jailed:\n%s", name, thread)
		}
	}
	root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", w.PID()))
	if err != nil || !strings.HasSuffix(root, " (deleted)") {
		t.Errorf("root is %q (%v), want a directory that is gone", root, err)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if strings.HasPrefix(to, "/sys/fs/cgroup/") {
			continue // the Go runtime's, open for reading: how many processors there are
		}
		if err == nil && strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/") && !strings.HasSuffix(to, "/pagemap") && filepath.Base(fd) != "2" {
			t.Errorf("descriptor %s is open on %s", filepath.Base(fd), to)
		}
	}
}
