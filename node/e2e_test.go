//go:build e2e

package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cella.dev/cella/guest/image"
	"cella.dev/cella/guest/wire"
	"cella.dev/cella/internal/agentrpc"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/node"
	"cella.dev/cella/node/worker"
	"cella.dev/cella/vmm"
)

// These tests run real guests: natively or in the lab (make e2e). CELLA_E2E_AGENT names the agent's binary,
// CELLA_E2E_STATE an empty directory on a filesystem with reflinks.

// TestMain lets the test binary be its own worker process, as cella is, and builds one template for all.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "vmm" {
		vcpus, _ := strconv.Atoi(os.Args[2])
		memory, _ := strconv.ParseUint(os.Args[3], 10, 64)
		if err := worker.Serve(vmm.Shape{VCPUs: vcpus, MemoryBytes: memory}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// In namespaces of their own, so that the tests of the network touch nothing of the host's.
	if err := testnet.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var fixture struct {
	sync.Once
	state  string
	initrd string
	assets image.Assets
	err    error
}

// state builds the base template once and returns the state directory that holds it.
func state(t *testing.T) string {
	t.Helper()
	fixture.Do(func() { fixture.err = prepare() })
	if fixture.err != nil {
		t.Fatal(fixture.err)
	}
	return fixture.state
}

func prepare() error {
	fixture.state = os.Getenv("CELLA_E2E_STATE")
	if fixture.state == "" {
		return errors.New("CELLA_E2E_STATE is not set; use: make e2e")
	}
	var err error
	if fixture.assets, err = image.Locate(); err != nil {
		return err
	}
	fixture.initrd = filepath.Join(fixture.state, "initrd")
	f, err := os.Create(fixture.initrd)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := image.BuildInitrd(f, os.Getenv("CELLA_E2E_AGENT"), fixture.assets.Modules); err != nil {
		return err
	}
	n, err := node.Open(node.Options{State: fixture.state, Run: filepath.Join(fixture.state, "run")})
	if err != nil {
		return err
	}
	defer n.Close(context.Background())
	spec := baseSpec("base")
	// The nonce lives in RAM alone: a sandbox that has it was restored, not booted.
	spec.WarmUp = []string{"echo warm", "sudo mkdir -p /run/nonce && cat /proc/sys/kernel/random/uuid | sudo tee /run/nonce/uuid"}
	_, err = n.BuildTemplate(context.Background(), spec)
	return err
}

func baseSpec(alias string) node.TemplateSpec {
	return node.TemplateSpec{
		Alias: alias, Kernel: fixture.assets.Vmlinux, Initrd: fixture.initrd, Rootfs: fixture.assets.Rootfs,
		WarmUp: []string{"echo warm"},
	}
}

// open starts a node on the shared state; its directory of sockets is its own.
func open(t *testing.T, opts node.Options) *node.Node {
	t.Helper()
	opts.State, opts.Run = state(t), t.TempDir()
	opts.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	n, err := node.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return n
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func create(t *testing.T, n *node.Node, req node.CreateRequest) node.Sandbox {
	t.Helper()
	if req.Template == "" {
		req.Template = "base"
	}
	if req.Timeout == 0 {
		req.Timeout = time.Hour
	}
	s, err := n.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type result struct {
	stdout, stderr string
	code           int
}

func run(t *testing.T, n *node.Node, s node.Sandbox, c agentrpc.Command) result {
	t.Helper()
	conn, err := n.Dial(t.Context(), s.ID, wire.PortAgent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c.Token = s.AccessToken
	var stdout, stderr bytes.Buffer
	code, err := agentrpc.Run(t.Context(), conn, c, agentrpc.Output{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), code}
}

// sh runs a command line that must succeed and returns its output without the last newline.
func sh(t *testing.T, n *node.Node, s node.Sandbox, line string) string {
	t.Helper()
	r := run(t, n, s, agentrpc.Shell(line))
	if r.code != 0 {
		t.Fatalf("%s: exit code %d: %s", line, r.code, r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

func TestCommandsAreExact(t *testing.T) {
	n := open(t, node.Options{})
	s := create(t, n, node.CreateRequest{Env: map[string]string{"GREETING": "salve"}, Secure: true})
	for _, tc := range []struct {
		line string
		want result
	}{
		{"echo hi", result{"hi\n", "", 0}},
		{"echo out; echo err >&2; exit 3", result{"out\n", "err\n", 3}},
		{"kill -9 $$", result{"", "", 137}},
		{"echo $GREETING $E2B_SANDBOX; whoami; pwd", result{"salve true\nuser\n/home/user\n", "", 0}},
		{`printf '\000\377\r\n'`, result{"\x00\xff\r\n", "", 0}},
		{"cat", result{"", "", 0}},
		{"python3 -c 'print(6*7)'", result{"42\n", "", 0}},
		{"sudo -n whoami", result{"root\n", "", 0}},
	} {
		got := run(t, n, s, agentrpc.Shell(tc.line))
		if strings.HasPrefix(tc.line, "kill") && (got.code == -1 || got.code == 137) {
			continue // E2B's agent reports -1 for a signal
		}
		if got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.line, got, tc.want)
		}
	}
	big := run(t, n, s, agentrpc.Shell("head -c 3000000 /dev/zero | tr '\\0' x"))
	if len(big.stdout) != 3000000 || strings.Trim(big.stdout, "x") != "" {
		t.Errorf("3 MB of output came back as %d bytes", len(big.stdout))
	}
}

func TestRestoredNotRebooted(t *testing.T) {
	n := open(t, node.Options{})
	a, b := create(t, n, node.CreateRequest{}), create(t, n, node.CreateRequest{})
	nonce := sh(t, n, a, "cat /run/nonce/uuid")
	if len(nonce) != 36 || nonce != sh(t, n, b, "cat /run/nonce/uuid") {
		t.Errorf("nonce %q is not the one that was in RAM at the snapshot", nonce)
	}
	cold := create(t, n, node.CreateRequest{Cold: true})
	if r := run(t, n, cold, agentrpc.Shell("test -e /run/nonce/uuid")); r.code != 1 {
		t.Error("a cold boot found the nonce of the snapshot's RAM")
	}
	// The guest's tick goes on: a sleep of a second takes a second, and timers fire.
	if got := sh(t, n, a, "s=$(cut -d. -f1 /proc/uptime); sleep 2; e=$(cut -d. -f1 /proc/uptime); echo $((e-s))"); got != "2" && got != "3" {
		t.Errorf("uptime advanced by %s s during a sleep of 2 s", got)
	}
}

func TestClockIsTheHosts(t *testing.T) {
	n := open(t, node.Options{})
	s := create(t, n, node.CreateRequest{})
	before := time.Now()
	nanos, err := strconv.ParseInt(sh(t, n, s, "date +%s%N"), 10, 64)
	after := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	guest := time.Unix(0, nanos)
	if guest.Before(before.Add(-500*time.Millisecond)) || guest.After(after.Add(500*time.Millisecond)) {
		t.Errorf("guest's clock says %v, the host's %v to %v", guest, before, after)
	}
}

func TestClonesShareNothingRandom(t *testing.T) {
	n := open(t, node.Options{PoolMin: 2, PoolMax: 4})
	const clones = 20
	seen := make(map[string]string)
	for range clones {
		s := create(t, n, node.CreateRequest{})
		out := sh(t, n, s, "cat /proc/sys/kernel/random/uuid; python3 -c 'import random; print(random.random())'; head -c 16 /dev/urandom | od -An -tx8")
		for kind, value := range strings.Split(out, "\n") {
			key := fmt.Sprint(kind, " ", value)
			if other, ok := seen[key]; ok {
				t.Errorf("%s and %s both drew %q", s.ID, other, value)
			}
			seen[key] = s.ID
		}
		if err := n.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 3*clones {
		t.Errorf("%d different values from %d clones, want %d", len(seen), clones, 3*clones)
	}
}

func TestDisksAreSeparate(t *testing.T) {
	n := open(t, node.Options{})
	a, b := create(t, n, node.CreateRequest{}), create(t, n, node.CreateRequest{})
	sh(t, n, a, "echo of a > /home/user/f && sync")
	if r := run(t, n, b, agentrpc.Shell("cat /home/user/f")); r.code != 1 {
		t.Errorf("b reads a's file: %+v", r)
	}
	sh(t, n, b, "echo of b > /home/user/f && sync")
	if got := sh(t, n, a, "cat /home/user/f"); got != "of a" {
		t.Errorf("a reads %q", got)
	}
	if got := sh(t, n, create(t, n, node.CreateRequest{}), "ls /home/user/f 2>/dev/null || echo none"); got != "none" {
		t.Errorf("a new sandbox sees %q", got)
	}
}

func TestPortsInside(t *testing.T) {
	n := open(t, node.Options{})
	s := create(t, n, node.CreateRequest{})
	sh(t, n, s, "mkdir -p /tmp/www && echo served > /tmp/www/f && cd /tmp/www && (setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &) ; for i in $(seq 100); do curl -s localhost:8000/f >/dev/null && exit; sleep 0.1; done; exit 1")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return n.Dial(ctx, s.ID, 8000)
	}}}
	resp, err := client.Get("http://sandbox/f")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "served\n" {
		t.Errorf("body = %q", body)
	}
	if _, err := n.Dial(t.Context(), s.ID, 8001); !errors.Is(err, node.ErrPortClosed) {
		t.Errorf("dial of a closed port: %v, want ErrPortClosed", err)
	}
}

func TestTwoVCPUs(t *testing.T) {
	n := open(t, node.Options{})
	spec := baseSpec("two")
	spec.CPUCount = 2
	if _, err := n.BuildTemplate(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	for _, cold := range []bool{false, true} {
		s := create(t, n, node.CreateRequest{Template: "two", Cold: cold})
		if got := sh(t, n, s, "nproc; for c in 0 1; do taskset -c $c sh -c 'echo cpu $(cut -d\" \" -f39 /proc/self/stat)'; done"); got != "2\ncpu 0\ncpu 1" {
			t.Errorf("cold=%v: %q", cold, got)
		}
		if got := sh(t, n, s, "sleep 1 & sleep 1 & wait; echo done"); got != "done" {
			t.Errorf("cold=%v: timers on two CPUs: %q", cold, got)
		}
	}
	if err := n.RemoveTemplate("two"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Create(t.Context(), node.CreateRequest{Template: "two", Timeout: time.Minute}); !errors.Is(err, node.ErrTemplateNotFound) {
		t.Errorf("create from a removed template: %v", err)
	}
}

func TestEndOfLife(t *testing.T) {
	n := open(t, node.Options{})
	s := create(t, n, node.CreateRequest{Timeout: time.Hour})
	conn, err := n.Dial(t.Context(), s.ID, wire.PortAgent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := n.Extend(s.ID, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, _ := n.Get(s.ID); !got.EndAt.Equal(s.EndAt) {
		t.Errorf("Extend shortened the end of life from %v to %v", s.EndAt, got.EndAt)
	}
	if err := n.SetTimeout(s.ID, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	// The open stream ends when the machine does.
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("stream of an expired sandbox: %v, want its end", err)
	}
	if _, err := n.Get(s.ID); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("expired sandbox: %v, want ErrNotFound", err)
	}
}

func TestPowerOffInsideEndsTheSandbox(t *testing.T) {
	n := open(t, node.Options{})
	s := create(t, n, node.CreateRequest{})
	conn, err := n.Dial(t.Context(), s.ID, wire.PortAgent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		c, err := n.Dial(context.Background(), s.ID, wire.PortAgent)
		if err == nil {
			agentrpc.Run(context.Background(), c, agentrpc.Shell("sudo sh -c 'echo o > /proc/sysrq-trigger'"), agentrpc.Output{Stdout: io.Discard, Stderr: io.Discard})
		}
	}()
	conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("stream of a powered-off sandbox: %v, want its end", err)
	}
	if _, err := n.Dial(t.Context(), s.ID, wire.PortAgent); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("dial: %v, want ErrNotFound", err)
	}
}

func TestGuestThatNeverAnswers(t *testing.T) {
	state(t)
	n := open(t, node.Options{})
	// An initrd whose /init sleeps for ever is a guest that boots and never answers.
	mute := filepath.Join(t.TempDir(), "initrd")
	f, err := os.Create(mute)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := image.BuildInitrd(f, os.Getenv("CELLA_E2E_MUTE"), fixture.assets.Modules); err != nil {
		t.Fatal(err)
	}
	spec := baseSpec("mute")
	spec.Initrd = mute
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	start := time.Now()
	if _, err := n.BuildTemplate(ctx, spec); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("build: %v, want a deadline", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("gave up after %v, want 15 s", took)
	}
	left, _ := filepath.Glob(filepath.Join(fixture.state, "templates", ".build*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBurstOfTwenty(t *testing.T) {
	n := open(t, node.Options{PoolMin: 2, PoolMax: 8})
	before := openFiles(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, err := n.Create(context.Background(), node.CreateRequest{Template: "base", Timeout: time.Hour})
			if err != nil {
				t.Error(err)
				return
			}
			conn, err := n.Dial(context.Background(), s.ID, wire.PortAgent)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			var out bytes.Buffer
			code, err := agentrpc.Run(context.Background(), conn, agentrpc.Shell("echo hi"), agentrpc.Output{Stdout: &out, Stderr: io.Discard})
			if err != nil || code != 0 || out.String() != "hi\n" {
				t.Errorf("%s: %d %q %v", s.ID, code, out.String(), err)
			}
		})
	}
	wg.Wait()
	list := n.List()
	if len(list) != 20 {
		t.Fatalf("%d sandboxes, want 20", len(list))
	}
	for _, s := range list {
		if err := n.Kill(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	}
	if len(n.List()) != 0 {
		t.Error("killed sandboxes are still listed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

// openFiles counts this process's descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
