package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"cella.dev/cella/internal/buildcache"
)

// Missing lists those of the packages that are not installed on this machine.
func Missing(ctx context.Context, packages []string) ([]string, error) {
	// Packages that dpkg has never heard of make it fail, while it still answers for the others.
	out, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${Package} ${db:Status-Status}\n"}, packages...)...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("ask dpkg what is installed: %w (cella's set-up is for Debian)", err)
	}
	return missing(packages, string(out)), nil
}

func missing(packages []string, installed string) []string {
	lines := strings.Split(installed, "\n")
	var absent []string
	for _, p := range packages {
		if !slices.Contains(lines, p+" installed") {
			absent = append(absent, p)
		}
	}
	return absent
}

// Install installs packages with apt.
func Install(ctx context.Context, b *buildcache.Build, packages []string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("installing %s needs root: run it with sudo", strings.Join(packages, " "))
	}
	b.Progress("installing %s", strings.Join(packages, " "))
	args := append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...)
	if err := b.Run(ctx, "apt-get", args...); err == nil {
		return nil
	}
	// Stale lists name packages that the mirror has replaced since.
	if err := b.Run(ctx, "apt-get", "update", "-q"); err != nil {
		return err
	}
	return b.Run(ctx, "apt-get", args...)
}

// Newest returns the name of the newest package whose name matches the expression.
func Newest(ctx context.Context, b *buildcache.Build, expr *regexp.Regexp) (string, error) {
	for attempt := range 2 {
		out, err := b.Output(ctx, "apt-cache", "pkgnames", "linux-image-")
		if err != nil {
			return "", err
		}
		if name := newest(strings.Fields(out), expr); name != "" {
			return name, nil
		}
		if attempt == 0 {
			b.Progress("reading apt's package lists")
			if err := b.Run(ctx, "apt-get", "update", "-q"); err != nil {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("apt knows no package that matches %s: check the machine's Debian sources", expr)
}

func newest(names []string, expr *regexp.Regexp) string {
	best := ""
	for _, name := range names {
		if expr.MatchString(name) && (best == "" || naturalLess(best, name)) {
			best = name
		}
	}
	return best
}

var digits = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\d+|\D+`) })

// naturalLess compares names with the numbers in them as numbers: 6.12.9 comes before 6.12.10.
func naturalLess(a, b string) bool {
	x, y := digits().FindAllString(a, -1), digits().FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		if x[i] == y[i] {
			continue
		}
		numbers := x[i][0] >= '0' && x[i][0] <= '9' && y[i][0] >= '0' && y[i][0] <= '9'
		if numbers && len(x[i]) != len(y[i]) {
			return len(x[i]) < len(y[i])
		}
		return x[i] < y[i]
	}
	return len(x) < len(y)
}

// Unpack downloads a package without installing it and unpacks its files into b.Dir/name.
func Unpack(ctx context.Context, b *buildcache.Build, pkg, name string) error {
	b.Progress("downloading %s", pkg)
	// apt downloads as the unprivileged user _apt unless told not to, which cannot write to the cache.
	download := []string{"-q", "-o", "APT::Sandbox::User=root", "download", pkg}
	if err := b.Run(ctx, "apt-get", download...); err != nil {
		if err := b.Run(ctx, "apt-get", "update", "-q"); err != nil {
			return err
		}
		if err := b.Run(ctx, "apt-get", download...); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(b.Dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d files: %v", pkg, len(debs), err)
	}
	b.Progress("unpacking %s", filepath.Base(debs[0]))
	if err := b.Run(ctx, "dpkg-deb", "-x", debs[0], filepath.Join(b.Dir, name)); err != nil {
		return err
	}
	return os.Remove(debs[0])
}
