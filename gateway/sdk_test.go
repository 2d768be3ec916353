//go:build sdk

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/node"
)

// agentNode is a fakeNode whose sandboxes are agents in debug mode, one process each, on loopback.
type agentNode struct {
	*fakeNode
	t      *testing.T
	binary string
}

var servingAt = regexp.MustCompile(`msg=serving addr=(\S+)`)

func (n *agentNode) Create(ctx context.Context, req node.CreateRequest) (node.Sandbox, error) {
	sb, err := n.fakeNode.Create(ctx, req)
	if err != nil {
		return sb, err
	}
	cmd := exec.Command(n.binary, "--debug", "--listen", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return sb, err
	}
	if err := cmd.Start(); err != nil {
		return sb, err
	}
	stop := func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() }
	n.t.Cleanup(stop)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		m := servingAt.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		go func() {
			for lines.Scan() { // so that its log does not fill the pipe
			}
		}()
		n.mu.Lock()
		defer n.mu.Unlock()
		fs := n.sandboxes[sb.ID]
		fs.ports[49983] = m[1]
		fs.stop = append(fs.stop, stop)
		return sb, nil
	}
	return sb, fmt.Errorf("%s ended before it served", n.binary)
}

// Dial reaches the agent of a sandbox, and the host's own loopback for every other port.
func (n *agentNode) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	n.mu.Lock()
	fs := n.sandboxes[id]
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if fs != nil && fs.ports[port] != "" {
		addr = fs.ports[port]
	}
	n.mu.Unlock()
	if fs == nil {
		return nil, node.ErrNotFound
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", node.ErrPortClosed, err)
	}
	return c, nil
}

// sdkRig is a gateway over agents, and a directory in which node finds the SDKs and the scripts.
type sdkRig struct {
	*rig
	dir string
}

// newSDKRig needs a node_modules with the SDKs: CELLA_SDK_MODULES, or what set-up has cached.
func newSDKRig(t *testing.T) *sdkRig {
	t.Helper()
	modules := os.Getenv("CELLA_SDK_MODULES")
	if modules == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		modules = filepath.Join(cache, "cella/sdk/node_modules")
	}
	if _, err := os.Stat(filepath.Join(modules, "e2b")); err != nil {
		t.Fatalf("no SDK in %s: run `make setup` or set CELLA_SDK_MODULES", modules)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "cella-agent")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/cella-agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("e2btest/agent/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	// Copied, because node looks for packages from where a script really is.
	for _, from := range append(scripts, "../docs/quickstart/hello.mjs") {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(from)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, func(c *Config) {
		c.Node = &agentNode{fakeNode: c.Node.(*fakeNode), t: t, binary: binary}
	})
	return &sdkRig{rig: r, dir: dir}
}

// run calls node in the directory.
func (r *sdkRig) run(sdk string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "E2B_SDK="+sdk, "E2B_API_KEY="+r.key, "E2B_API_URL="+r.url, "E2B_SANDBOX_URL="+r.url)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var sdks = []string{"e2b", "e2b-2.45"}

// TestQuickStart runs docs/quickstart with each pinned SDK through the gateway.
func TestQuickStart(t *testing.T) {
	r := newSDKRig(t)
	for _, sdk := range sdks {
		t.Run(sdk, func(t *testing.T) {
			out, err := r.run(sdk, "hello.mjs")
			if err != nil || strings.Count(out, "ok  ") != 6 {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// TestAgentThroughTheGateway runs the agent's own tests, but with the gateway between SDK and agent.
func TestAgentThroughTheGateway(t *testing.T) {
	r := newSDKRig(t)
	for _, sdk := range sdks {
		t.Run(sdk, func(t *testing.T) {
			if out, err := r.run(sdk, "--test", "--test-concurrency=2"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
