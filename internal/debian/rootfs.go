package debian

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cella.dev/cella/internal/buildcache"
)

// Suite is the release that all images are made of.
const Suite = "trixie"

// Rootfs is the recipe of a root filesystem image.
type Rootfs struct {
	// Label names the filesystem.
	Label string
	// Packages are installed beside Debian's essential ones, without what they merely recommend.
	Packages []string
	// Setup is a shell script run outside the root, with the root's directory as $1.
	Setup string
	// FreeMiB is the free space left in the image.
	FreeMiB int64
}

// Recipe is everything that decides how the image comes out, for its buildcache.Step.
func (r Rootfs) Recipe() string {
	return fmt.Sprintf("v1 %s %s %v %d\n%s\n%v\n%v", Suite, r.Label, r.Packages, r.FreeMiB, r.Setup, slimming, ext4Options)
}

// slimming keeps manuals, documentation and translations out of the images; licences stay.
var slimming = []string{
	"path-exclude=/usr/share/man/*",
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*",
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/lintian/*",
}

// ext4Options are for an image of which each sandbox gets a clone: everything is laid out at build time, so
// that no clone spends its first seconds on it, and the journal is small because it is private to each clone.
var ext4Options = []string{
	"-t", "ext4", "-m", "0", "-J", "size=16", "-O", "^metadata_csum_seed,^orphan_file",
	"-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
}

// Bootstrap installs the packages into a new directory, which it returns. Root is needed.
func (r Rootfs) Bootstrap(ctx context.Context, b *buildcache.Build) (string, error) {
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("building a root filesystem keeps file owners, which only root can do: run it with sudo")
	}
	sources, err := Sources("/")
	if err != nil {
		return "", err
	}
	mirror, err := Mirror(sources)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.Dir, "root")
	setup := filepath.Join(b.Dir, "setup.sh")
	if err := os.WriteFile(setup, []byte("#!/bin/sh\nset -eu\n"+common+r.Setup), 0o755); err != nil {
		return "", err
	}
	args := []string{"--mode=root", "--variant=minbase", "--format=directory",
		"--aptopt=APT::Install-Recommends \"false\"", "--dpkgopt=force-unsafe-io",
		"--include=" + strings.Join(r.Packages, ","), "--customize-hook=" + setup}
	for _, opt := range slimming {
		args = append(args, "--dpkgopt="+opt)
	}
	network, err := aptNetworkOptions(ctx, b)
	if err != nil {
		return "", err
	}
	args = append(append(args, network...), Suite, dir, mirror)
	b.Progress("installing Debian %s with %s", Suite, strings.Join(r.Packages, " "))
	if err := b.Run(ctx, "mmdebstrap", args...); err != nil {
		return "", err
	}
	return dir, os.Remove(setup)
}

// common takes out of a root what must differ between machines made from it, or is of no use in an image.
const common = `
: > "$1/etc/machine-id"
rm -f "$1/var/lib/systemd/random-seed" "$1/etc/hostname" "$1/etc/resolv.conf"
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/ldconfig "$1"/var/log/*.log "$1"/var/log/apt
`

// aptNetworkOptions hands apt's proxy and certificate settings on, so that a build reaches what apt reaches.
func aptNetworkOptions(ctx context.Context, b *buildcache.Build) ([]string, error) {
	dump, err := b.Output(ctx, "apt-config", "dump")
	if err != nil {
		return nil, err
	}
	var opts []string
	for line := range strings.Lines(dump) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		name, value, _ := strings.Cut(line, " ")
		network := strings.HasPrefix(name, "Acquire::http") || strings.HasPrefix(name, "Acquire::https")
		if network && value != `""` {
			opts = append(opts, "--aptopt="+line)
		}
	}
	return opts, nil
}

// Ext4 makes an ext4 image at b.Dir/name out of a directory, owners and extended attributes kept, and removes
// the directory.
func (r Rootfs) Ext4(ctx context.Context, b *buildcache.Build, dir, name string) error {
	used, err := b.Output(ctx, "du", "-sm", dir)
	if err != nil {
		return err
	}
	var contentMiB int64
	if _, err := fmt.Sscan(used, &contentMiB); err != nil {
		return fmt.Errorf("read du's answer %q: %w", used, err)
	}
	// A tenth and 64 MiB more for inode tables, bitmaps and the journal, in whole huge pages.
	sizeMiB := (contentMiB+contentMiB/10+64+r.FreeMiB)/2*2 + 2
	b.Progress("packing %d MiB into an ext4 image of %d MiB", contentMiB, sizeMiB)
	args := append([]string{"-q", "-F", "-L", r.Label, "-d", dir}, ext4Options...)
	args = append(args, filepath.Join(b.Dir, name), fmt.Sprintf("%dM", sizeMiB))
	if err := b.Run(ctx, "mke2fs", args...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
