//go:build lab

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// These tests boot labs: `go test -tags lab ./lab`. They need set-up to have run, and take a minute or two.

var binDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cella-lab-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binDir = dir
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "cella"), "cella.dev/cella/cmd/cella")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cella: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// run runs a shell script in a lab.
func run(t *testing.T, script string, change func(*Options)) (Result, string, string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o := Options{Command: []string{"sh", "-c", script}, Stdout: &stdout, Stderr: &stderr, BinDir: binDir, Timeout: 5 * time.Minute}
	if change != nil {
		change(&o)
	}
	r, err := Run(t.Context(), o)
	return r, stdout.String(), stderr.String(), err
}

// hostScript says what a host for cella has, a line each.
const hostScript = `
set -e
test -c /dev/kvm && echo kvm
cp --reflink=always /var/lib/cella/assets/rootfs.ext4 /var/lib/cella/clone && echo reflink
test -r /sys/kernel/btf/vmlinux && echo btf
test -c /dev/net/tun && echo tun
grep -q cgroup2 /proc/mounts && grep -qw memory /sys/fs/cgroup/cgroup.subtree_control && echo cgroups
mount | grep -q '^bpf on /sys/fs/bpf' && echo bpffs
test "$(ulimit -n)" = 1048576 && echo files
nft list ruleset && echo nftables
node -e 'if (process.versions.node.split(".")[0] < 20) process.exit(1)' && echo node
crun --version > /dev/null && qemu-system-x86_64 -M help | grep -q '^microvm ' && echo peers
ls /var/lib/cella/assets/vmlinux /var/lib/cella/assets/vmlinuz /var/lib/cella/assets/modules/order > /dev/null && echo assets
ls -d /var/lib/cella/sdk/node_modules/e2b > /dev/null && echo sdk
mkdir /tmp/base && mount -o loop,ro /var/lib/cella/assets/rootfs.ext4 /tmp/base
test "$(chroot /tmp/base su user -c 'sudo id -u; python -c "print(6*7)"; git --version | cut -c1-11; curl --version | cut -c1-4; pwd' | head -n 4 | tr '\n' ' ')" = "0 42 git version curl " && echo base
test ! -s /tmp/base/etc/machine-id && test ! -e /tmp/base/var/lib/systemd/random-seed && echo impersonal
cella lab --help > /dev/null && echo cella
`

func TestLabIsAHost(t *testing.T) {
	t.Parallel()
	r, stdout, stderr, err := run(t, hostScript, nil)
	want := "kvm\nreflink\nbtf\ntun\ncgroups\nbpffs\nfiles\nnftables\nnode\npeers\nassets\nsdk\nbase\nimpersonal\ncella\n"
	if err != nil || r.ExitCode != 0 || stdout != want {
		t.Errorf("the lab has\n%s(exit code %d, %v, stderr %q), want\n%s", stdout, r.ExitCode, err, stderr, want)
	}
}

// The other tests would pass with a QEMU that cannot be corrected, most of the time.
func TestEmulatorIsKnown(t *testing.T) {
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := findNote(program); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

func TestFilesOutputAndExitStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	blob := bytes.Repeat([]byte{0, 0xff, '\r', '\n', 0x1a, 'x'}, 300_000)
	if err := os.WriteFile(filepath.Join(dir, "blob"), blob, 0o644); err != nil {
		t.Fatal(err)
	}
	// The background process holds the output open, and must not hold up the end.
	script := `cat /in/blob; cat >&2; cp /in/blob /tmp/out; mkdir -p /tmp/d/e; echo $NAME > /tmp/d/e/f; sleep 1000 & kill -TERM $$`
	r, stdout, stderr, err := run(t, script, func(o *Options) {
		o.Env = []string{"NAME=a b"}
		o.Stdin = strings.NewReader("typed")
		o.In = []Copy{{filepath.Join(dir, "blob"), "/in/blob"}}
		o.Out = []Copy{{"/tmp/out", filepath.Join(dir, "out")}, {"/tmp/d", filepath.Join(dir, "d")}, {"/tmp/none", filepath.Join(dir, "none")}}
	})
	if err != nil || r.ExitCode != 128+15 {
		t.Errorf("exit code %d, %v; want 143: ended by SIGTERM", r.ExitCode, err)
	}
	if stdout != string(blob) || stderr != "typed" {
		t.Errorf("output: %d bytes and %q, want the blob's %d and \"typed\"", len(stdout), stderr, len(blob))
	}
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil || sha256.Sum256(out) != sha256.Sum256(blob) {
		t.Errorf("the copied file differs: %d bytes, %v", len(out), err)
	}
	if f, err := os.ReadFile(filepath.Join(dir, "d/e/f")); string(f) != "a b\n" {
		t.Errorf("the copied directory's file holds %q, %v", f, err)
	}
}

func TestMissingOutFileIsAnError(t *testing.T) {
	t.Parallel()
	_, _, _, err := run(t, "true", func(o *Options) { o.Out = []Copy{{"/tmp/none", filepath.Join(t.TempDir(), "none")}} })
	if err == nil || !strings.Contains(err.Error(), "/tmp/none") {
		t.Errorf("error is %v, want one that names the file", err)
	}
}

func TestPanicEndsWithTheConsole(t *testing.T) {
	t.Parallel()
	_, stdout, _, err := run(t, "echo before; echo c > /proc/sysrq-trigger", nil)
	if stdout != "before\n" {
		t.Errorf("output is %q, want what came before the panic", stdout)
	}
	if err == nil || !strings.Contains(err.Error(), "Kernel panic - not syncing: sysrq triggered crash") {
		t.Errorf("error is %v, want one with the kernel's panic", err)
	}
}

func TestHangEndsWithTheTimeLimit(t *testing.T) {
	t.Parallel()
	start := time.Now()
	_, _, _, err := run(t, "sleep 100000000", func(o *Options) {
		o.Clock, o.Timeout = Real, 20*time.Second
	})
	if !errors.Is(err, ErrTimeout) || time.Since(start) > time.Minute {
		t.Errorf("error is %v after %v, want ErrTimeout after 20 s", err, time.Since(start))
	}
}

func TestCancelledRunLeavesNoProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Command: []string{"true"}, BinDir: binDir, Ready: cancel}
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}

// The instruction clock counts the same work the same.
func TestInstructionClockRepeats(t *testing.T) {
	t.Parallel()
	const work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
	var took [2]time.Duration
	for i := range took {
		r, _, _, err := run(t, work, nil)
		if err != nil {
			t.Fatal(err)
		}
		took[i] = r.Run
	}
	if diff := (took[0] - took[1]).Abs(); diff > took[0]/50 {
		t.Errorf("the same loop took %v and %v, more than 2 %% apart", took[0], took[1])
	}
}

func TestForwardedPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	// The server says when it listens.
	const server = `require("net").createServer(c => c.end("hello\n")).listen(7000, () => console.log("listening"))`
	listening := &lineWriter{seen: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Options{Command: []string{"node", "-e", server}, BinDir: binDir, Stdout: listening, Forward: []Forward{{port, 7000}}})
		ended <- err
	}()
	select {
	case <-listening.seen:
	case err := <-ended:
		t.Fatalf("the lab ended: %v", err)
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "hello\n" {
		t.Errorf("the lab's server said %q, %v; want hello", got, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v, want context.Canceled", err)
	}
}

// lineWriter closes seen at the first write.
type lineWriter struct{ seen chan struct{} }

func (w *lineWriter) Write(p []byte) (int, error) {
	select {
	case <-w.seen:
	default:
		close(w.seen)
	}
	return len(p), nil
}
