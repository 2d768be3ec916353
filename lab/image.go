package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cella.dev/cella/internal/buildcache"
	"cella.dev/cella/internal/debian"
	"cella.dev/cella/internal/kmod"
)

// Names of the lab's products in the cache.
const (
	rootStep    = "lab-root"
	modulesStep = "lab-modules"
	stateStep   = "lab-state"
)

// root is the emulated host's own filesystem: what cella needs on a host, the official SDK's runtime, and the
// peers that benchmarks run beside it.
var root = debian.Rootfs{
	Label: "lab",
	Packages: []string{"busybox-static", "ca-certificates", "crun", "curl", "e2fsprogs", "iproute2", "kmod", "nftables",
		"nodejs", "procps", "python3-minimal", "qemu-system-x86", "strace", "util-linux", "xfsprogs"},
	FreeMiB: 1024,
	Setup: `
echo lab > "$1/etc/hostname"
printf '127.0.0.1 localhost lab\n::1 localhost\n' > "$1/etc/hosts"
mkdir -p "$1/var/lib/cella"
`,
}

// bootModules are loaded before the root disk is mounted: its drivers, KVM, and what cella uses on a host. All
// other modules are on the root disk, where the kernel finds them on demand.
var bootModules = []string{"nfit", "nd_pmem", "virtio_net", "virtio_rng", "irqbypass", "kvm", "kvm-amd", "xfs", "loop",
	"tun", "vsock", "vhost_vsock"}

// Ingredients are what the lab is built from besides Debian's packages.
type Ingredients struct {
	// Kernel is the directory of a kernel: vmlinuz, vmlinux and lib/modules/VERSION with its modules.dep.
	Kernel string
	// State maps names under /var/lib/cella in the lab to files and directories that lie there from the
	// start.
	State map[string]string
}

// Ensure builds those of the lab's images that are not up to date.
func Ensure(ctx context.Context, c *buildcache.Cache, in Ingredients) error {
	modules, err := filepath.Glob(filepath.Join(in.Kernel, "lib/modules/*"))
	if err != nil || len(modules) != 1 {
		return fmt.Errorf("find the kernel's modules in %s: %d found, want 1 (%v)", in.Kernel, len(modules), err)
	}
	state, err := stateDisk(in.State)
	if err != nil {
		return err
	}
	for _, step := range []buildcache.Step{rootDisk(modules[0]), initramfsModules(modules[0]), state} {
		if _, err := c.Ensure(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

func rootDisk(modules string) buildcache.Step {
	return buildcache.Step{
		Name:   rootStep,
		Recipe: root.Recipe() + " v2 " + filepath.Base(modules),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			dir, err := root.Bootstrap(ctx, b)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, "usr/lib/modules")
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			if err := b.Run(ctx, "cp", "-a", modules, to); err != nil {
				return err
			}
			return root.Ext4(ctx, b, dir, "root.ext4")
		},
	}
}

func initramfsModules(modules string) buildcache.Step {
	return buildcache.Step{
		Name:   modulesStep,
		Recipe: fmt.Sprintf("v3 %v %s", bootModules, filepath.Base(modules)),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			tree, err := kmod.Open(modules)
			if err != nil {
				return err
			}
			return tree.Extract(b.Dir, bootModules...)
		},
	}
}

// stateSize is how large the lab's /var/lib/cella may grow. The image is sparse.
const stateSize = 24 << 30

// stateDisk is the XFS image that every lab starts with at /var/lib/cella. It is filled here, because copying a
// gigabyte takes a moment on this machine and a minute on an emulated one.
func stateDisk(content map[string]string) (buildcache.Step, error) {
	recipe, err := describe(content)
	if err != nil {
		return buildcache.Step{}, err
	}
	build := func(ctx context.Context, b *buildcache.Build) error {
		image, mnt := filepath.Join(b.Dir, "state.xfs"), filepath.Join(b.Dir, "mnt")
		if err := os.WriteFile(image, nil, 0o644); err != nil {
			return err
		}
		if err := os.Truncate(image, stateSize); err != nil {
			return err
		}
		if err := b.Run(ctx, "mkfs.xfs", "-q", "-m", "reflink=1", "-L", "cella", image); err != nil {
			return err
		}
		if err := os.Mkdir(mnt, 0o755); err != nil {
			return err
		}
		b.Progress("filling the lab's state disk")
		args := []string{"-m", "sh", "-euc", fillScript, "fill", image, mnt}
		for _, name := range slices.Sorted(maps.Keys(content)) {
			args = append(args, content[name], name)
		}
		if err := b.Run(ctx, "unshare", args...); err != nil {
			return fmt.Errorf("%w\n(filling the state disk needs loop devices and XFS in this machine's kernel)", err)
		}
		return os.Remove(mnt)
	}
	return buildcache.Step{Name: stateStep, Recipe: recipe, Build: build}, nil
}

// fillScript mounts image $1 at $2 and copies pairs of a path here and a name there. It runs in a mount namespace
// of its own, so that the mount is gone however it ends.
const fillScript = `
mount -o loop "$1" "$2"
mnt=$2
shift 2
while [ $# -gt 0 ]; do
	mkdir -p "$mnt/$(dirname "$2")"
	cp -a --sparse=always "$1" "$mnt/$2"
	shift 2
done
umount "$mnt"
`

// describe names content so that a change of any file in it changes the description: by its size and the time
// it was written, which the cache's renames keep.
func describe(content map[string]string) (string, error) {
	lines := []string{fmt.Sprintf("v1 %d", stateSize)}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		st, err := os.Stat(content[name])
		if err != nil {
			return "", fmt.Errorf("fill the lab's state disk: %w", err)
		}
		lines = append(lines, fmt.Sprintf("%s %d %d", name, st.Size(), st.ModTime().UnixNano()))
	}
	return strings.Join(lines, "\n"), nil
}

// Images are the paths of the lab's built parts.
type Images struct {
	Vmlinuz, Vmlinux, Modules, Root, State string
}

// Find returns the lab's parts in a cache directory. The error says what to run.
func Find(cacheDir string) (Images, error) {
	c := buildcache.Cache{Dir: cacheDir}
	im := Images{
		Vmlinuz: c.Path("kernel", "vmlinuz"),
		Vmlinux: c.Path("kernel", "vmlinux"),
		Modules: c.Path(modulesStep),
		Root:    c.Path(rootStep, "root.ext4"),
		State:   c.Path(stateStep, "state.xfs"),
	}
	for _, path := range []string{im.Vmlinuz, im.Modules, im.Root, im.State} {
		if _, err := os.Stat(path); err != nil {
			return Images{}, fmt.Errorf("the lab's %s is missing: run `cella setup` (or `make setup`)", path)
		}
	}
	return im, nil
}
