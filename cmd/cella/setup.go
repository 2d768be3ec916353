package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cella.dev/cella/gateway/e2btest"
	"cella.dev/cella/guest/image"
	"cella.dev/cella/internal/buildcache"
	"cella.dev/cella/internal/debian"
	"cella.dev/cella/lab"
)

// hostPackages are what set-up and the lab run on this machine.
var hostPackages = []string{"qemu-system-x86", "mmdebstrap", "e2fsprogs", "xfsprogs", "cpio", "kmod", "xz-utils", "iproute2", "util-linux"}

func newSetupCommand() *cobra.Command {
	var asJSON bool
	var cache buildcache.Cache
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Get or build what cella, its tests and its benchmarks need",
		Long: `Get or build what cella, its tests and its benchmarks need: Debian packages on this machine, a guest kernel, the
base template's root filesystem, and the lab. Everything but the packages is kept in ${CELLA_CACHE:-~/.cache/cella}.
What is up to date is left alone, and an interrupted set-up goes on where it was.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			var err error
			if cache.Dir == "" {
				if cache.Dir, err = buildcache.DefaultDir(); err != nil {
					return err
				}
			}
			cache.Report = progressLines(cmd.OutOrStdout())
			if asJSON {
				cache.Report = progressJSON(cmd.OutOrStdout())
			}
			return setup(ctx, &cache)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print progress as one JSON object a line")
	cmd.Flags().BoolVar(&cache.Refresh, "refresh", false, "build everything anew, with the newest packages")
	cmd.Flags().StringVar(&cache.Dir, "cache", "", "where to keep it all (default ${CELLA_CACHE:-~/.cache/cella})")
	return cmd
}

// setup brings everything up to date, in the order in which one thing needs another.
func setup(ctx context.Context, c *buildcache.Cache) error {
	if err := installPackages(ctx, c); err != nil {
		return err
	}
	assets, err := image.Ensure(ctx, c)
	if err != nil {
		return err
	}
	for _, step := range []buildcache.Step{e2btest.NodeBinary(ctx), e2btest.SDK()} {
		if _, err := c.Ensure(ctx, step); err != nil {
			return err
		}
	}
	return lab.Ensure(ctx, c, lab.Ingredients{
		Kernel: c.Path("kernel"),
		State: map[string]string{
			"assets/vmlinux":     assets.Vmlinux,
			"assets/vmlinuz":     assets.Vmlinuz,
			"assets/modules":     assets.Modules,
			"assets/rootfs.ext4": assets.Rootfs,
			"sdk/node_modules":   e2btest.Modules(c),
		},
	})
}

// installPackages installs what is missing on this machine. What dpkg says is the truth, so the step's recipe is
// the list of what is missing.
func installPackages(ctx context.Context, c *buildcache.Cache) error {
	wanted := hostPackages
	if _, err := exec.LookPath("npm"); err != nil {
		// Only then: on a machine with npm from elsewhere, Debian's would get in its way.
		wanted = append(slices.Clone(wanted), "npm")
	}
	absent, err := debian.Missing(ctx, wanted)
	if err != nil {
		return err
	}
	if len(absent) == 0 {
		return nil
	}
	_, err = c.Ensure(ctx, buildcache.Step{
		Name:   "packages",
		Recipe: fmt.Sprint(absent, time.Now()),
		Build: func(ctx context.Context, b *buildcache.Build) error {
			return debian.Install(ctx, b, absent)
		},
	})
	return err
}

// progressLines prints an event a line: where, how long it has taken, what.
func progressLines(w io.Writer) func(buildcache.Event) {
	return func(e buildcache.Event) {
		fmt.Fprintf(w, "%-12s %6.1fs  %s\n", e.Step, e.Elapsed.Seconds(), e.Message)
	}
}

func progressJSON(w io.Writer) func(buildcache.Event) {
	enc := json.NewEncoder(w)
	return func(e buildcache.Event) {
		enc.Encode(e) // Nobody left to tell if standard output is gone.
	}
}

// setupIfNeeded sets up when the guest's ingredients are missing.
func setupIfNeeded(ctx context.Context) error {
	if _, err := image.Locate(); err == nil {
		return nil
	}
	dir, err := buildcache.DefaultDir()
	if err != nil {
		return err
	}
	return setup(ctx, &buildcache.Cache{Dir: dir, Report: progressLines(os.Stderr)})
}
