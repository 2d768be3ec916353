package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"cella.dev/cella/internal/buildcache"
	"cella.dev/cella/internal/debian"
	"cella.dev/cella/internal/kmod"
)

const (
	kernelStep  = "kernel"
	modulesStep = "modules"
)

// kernelPackage is Debian's long-term 6.12 kernel in its cloud flavour. Its signed form differs only by a
// signature on the boot image, which nothing here reads.
var kernelPackage = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^linux-image-6\.12\.[0-9].*-cloud-amd64(-unsigned)?$`)
})

// Kernel is the step that fetches Debian's kernel.
func Kernel() buildcache.Step {
	return buildcache.Step{Name: kernelStep, Recipe: "v1 " + kernelPackage().String(), Build: buildKernel}
}

func buildKernel(ctx context.Context, b *buildcache.Build) error {
	pkg, err := debian.Newest(ctx, b, kernelPackage())
	if err != nil {
		return err
	}
	const unpacked = "package"
	if err := debian.Unpack(ctx, b, pkg, unpacked); err != nil {
		return err
	}
	boot, err := one(filepath.Join(b.Dir, unpacked, "boot", "vmlinuz-*"))
	if err != nil {
		return err
	}
	b.Progress("unpacking the kernel's ELF")
	if err := writeELF(boot, filepath.Join(b.Dir, "vmlinux")); err != nil {
		return err
	}
	for _, move := range [][2]string{{boot, "vmlinuz"}, {moduleRoot(filepath.Join(b.Dir, unpacked)), "lib"}} {
		if err := os.Rename(move[0], filepath.Join(b.Dir, move[1])); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(b.Dir, unpacked)); err != nil {
		return err
	}
	modules, err := one(filepath.Join(b.Dir, "lib/modules/*"))
	if err != nil {
		return err
	}
	return b.Run(ctx, "depmod", "-b", b.Dir, filepath.Base(modules))
}

// moduleRoot is the directory that holds modules/VERSION: lib in older packages, usr/lib in newer ones.
func moduleRoot(unpacked string) string {
	merged := filepath.Join(unpacked, "usr/lib")
	if _, err := os.Stat(filepath.Join(merged, "modules")); err == nil {
		return merged
	}
	return filepath.Join(unpacked, "lib")
}

func writeELF(bzImage, to string) error {
	data, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	elf, err := ExtractELF(data)
	if err != nil {
		return fmt.Errorf("%s: %w", bzImage, err)
	}
	return os.WriteFile(to, elf, 0o644)
}

// one is the only file that matches the pattern.
func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d files match %s, want 1", len(found), pattern)
	}
	return found[0], nil
}

// guestModules are what the guest's agent loads before it mounts the root: the devices the VMM offers
// (virtio-mmio disk, vsock, entropy and network card) and overlayfs. ext4, FUSE and VMGENID are built in.
var guestModules = []string{
	"virtio_mmio", "virtio_blk", "ext4", "vsock", "vmw_vsock_virtio_transport", "virtio_rng", "virtio_net", "overlay", "fuse",
}

// Modules is the step that lays out the modules of the guest's initramfs. It needs the kernel in c.
func Modules(c *buildcache.Cache) buildcache.Step {
	return buildcache.Step{
		Name:   modulesStep,
		Recipe: fmt.Sprintf("v3 %v %s", guestModules, kernelVersion(c)),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			tree, err := OpenModules(c)
			if err != nil {
				return err
			}
			return tree.Extract(b.Dir, guestModules...)
		},
	}
}

// OpenModules opens the module tree of the kernel in c.
func OpenModules(c *buildcache.Cache) (*kmod.Tree, error) {
	dir, err := one(c.Path(kernelStep, "lib/modules/*"))
	if err != nil {
		return nil, err
	}
	return kmod.Open(dir)
}

// kernelVersion is the release of the kernel in c, or "" before there is one.
func kernelVersion(c *buildcache.Cache) string {
	dir, err := one(c.Path(kernelStep, "lib/modules/*"))
	if err != nil {
		return ""
	}
	return filepath.Base(dir)
}
