package image

import (
	"context"
	"fmt"
	"os"

	"cella.dev/cella/internal/buildcache"
)

// Assets are the paths of a guest's ingredients.
type Assets struct {
	// Vmlinux is the kernel's uncompressed ELF, which the VMM boots.
	Vmlinux string
	// Vmlinuz is the same kernel as a bzImage, for virtual machines that boot only that.
	Vmlinuz string
	// Modules is a directory of NN-name.ko files and the file order.
	Modules string
	// Rootfs is the base template's ext4 image.
	Rootfs string
}

// Find returns the ingredients in a cache directory as set-up left them. The error is one line that says what
// to run.
func Find(cacheDir string) (Assets, error) {
	c := buildcache.Cache{Dir: cacheDir}
	return check(Assets{
		Vmlinux: c.Path(kernelStep, "vmlinux"),
		Vmlinuz: c.Path(kernelStep, "vmlinuz"),
		Modules: c.Path(modulesStep),
		Rootfs:  c.Path(baseStep, "rootfs.ext4"),
	})
}

func check(a Assets) (Assets, error) {
	for _, path := range []string{a.Vmlinux, a.Vmlinuz, a.Modules, a.Rootfs} {
		if _, err := os.Stat(path); err != nil {
			return Assets{}, fmt.Errorf("the guest's %s is missing: run `cella setup` (or `make setup`)", path)
		}
	}
	return a, nil
}

// Ensure builds all of a guest's ingredients that are not up to date.
func Ensure(ctx context.Context, c *buildcache.Cache) (Assets, error) {
	if _, err := c.Ensure(ctx, Kernel()); err != nil {
		return Assets{}, err
	}
	// The recipe of the modules names the kernel's version, so the kernel comes first.
	for _, step := range []buildcache.Step{Modules(c), Base()} {
		if _, err := c.Ensure(ctx, step); err != nil {
			return Assets{}, err
		}
	}
	return Find(c.Dir)
}
