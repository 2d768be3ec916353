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
		if m := servingAt.FindStringSubmatch(lines.Text()); m != nil {
			go func() {
				for lines.Scan() {
				}
			}()
			n.mu.Lock()
			defer n.mu.Unlock()
			fs := n.sandboxes[sb.ID]
			fs.ports[49983] = m[1]
			fs.stop = append(fs.stop, stop)
			return sb, nil
		}
	}
	return sb, fmt.Errorf("%s ended before it served", n.binary)
}

func (n *agentNode) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	n.mu.Lock()
	fs := n.sandboxes[id]
	n.mu.Unlock()
	if fs == nil {
		return nil, node.ErrNotFound
	}
	addr := fs.ports[port]
	if addr == "" {
		addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", node.ErrPortClosed, err)
	}
	return c, nil
}

// TestUnmodifiedSDKs runs the quick start with each pinned SDK through the gateway. CELLA_SDK_MODULES is a
// node_modules with them (set-up makes one).
func TestUnmodifiedSDKs(t *testing.T) {
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
	script, err := os.ReadFile("../docs/quickstart/hello.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hello.mjs"), script, 0o644); err != nil {
		t.Fatal(err)
	}

	r := newRig(t, func(c *Config) {
		c.Node = &agentNode{fakeNode: c.Node.(*fakeNode), t: t, binary: binary}
	})
	for _, sdk := range []string{"e2b", "e2b-2.45"} {
		t.Run(sdk, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "hello.mjs"))
			cmd.Env = append(os.Environ(), "E2B_SDK="+sdk, "E2B_API_KEY="+r.key, "E2B_API_URL="+r.url, "E2B_SANDBOX_URL="+r.url)
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "ok  ") != 6 {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("\n%s", out)
		})
	}
}
