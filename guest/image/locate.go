package image

import (
	"os"
	"path/filepath"

	"cella.dev/cella/internal/buildcache"
)

// Locate finds the ingredients: in the directory that CELLA_ASSETS names, where they lie under the names below
// (the lab has one), or else where set-up keeps them.
func Locate() (Assets, error) {
	if dir := os.Getenv("CELLA_ASSETS"); dir != "" {
		return check(Assets{
			Vmlinux: filepath.Join(dir, "vmlinux"),
			Vmlinuz: filepath.Join(dir, "vmlinuz"),
			Modules: filepath.Join(dir, "modules"),
			Rootfs:  filepath.Join(dir, "rootfs.ext4"),
		})
	}
	dir, err := buildcache.DefaultDir()
	if err != nil {
		return Assets{}, err
	}
	return Find(dir)
}
