package image

import (
	"context"

	"cella.dev/cella/internal/buildcache"
	"cella.dev/cella/internal/debian"
)

const baseStep = "base"

// base is the base template's root: what the SDKs and agent frameworks count on, and no more.
var base = debian.Rootfs{
	Label: "cella-base",
	Packages: []string{"bash", "coreutils", "python3", "python-is-python3", "git", "curl", "sudo", "ca-certificates",
		"iproute2", "procps", "ncurses-bin"},
	FreeMiB: 1024,
	Setup: `
chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash user
echo 'user ALL=(ALL) NOPASSWD: ALL' > "$1/etc/sudoers.d/user"
chmod 0440 "$1/etc/sudoers.d/user"
echo cella > "$1/etc/hostname"
printf '127.0.0.1 localhost cella\n::1 localhost ip6-localhost\n' > "$1/etc/hosts"
`,
}

// Base is the step that builds the base template's root filesystem.
func Base() buildcache.Step {
	return buildcache.Step{Name: baseStep, Recipe: base.Recipe(), Build: buildBase}
}

func buildBase(ctx context.Context, b *buildcache.Build) error {
	dir, err := base.Bootstrap(ctx, b)
	if err != nil {
		return err
	}
	return base.Ext4(ctx, b, dir, "rootfs.ext4")
}
