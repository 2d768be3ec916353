// Package buildcache keeps what set-up builds: kernels, images, package trees. Each is a Step with a directory
// of its own in the cache; a step whose recipe has not changed costs one small file read, and one that was
// interrupted starts again without having touched what was there before.
//
//	<cache>/<name>/         the finished product
//	<cache>/<name>/.stamp   hash of the recipe it was built by
//	<cache>/<name>.new/     a build under way
//	<cache>/<name>.lock     held while building, so that two set-ups never build the same thing
//	<cache>/<name>.log      what the last build's commands printed
package buildcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const stampName = ".stamp"

// Step is one product of set-up.
type Step struct {
	// Name is the product's directory in the cache.
	Name string
	// Recipe is everything whose change must lead to a new build, in any text form.
	Recipe string
	// Build fills b.Dir, an empty directory. What it leaves there becomes the product.
	Build func(ctx context.Context, b *Build) error
}

// Event is one line of progress.
type Event struct {
	Step string `json:"step"`
	// Message says what began or, where Done is set, how it ended.
	Message string `json:"message"`
	Done    bool   `json:"done,omitempty"`
	// Cached is set with Done when nothing had to be built.
	Cached bool `json:"cached,omitempty"`
	// Elapsed counts from the step's start.
	Elapsed time.Duration `json:"elapsedNs"`
}

// Cache is a directory of products.
type Cache struct {
	Dir string
	// Report takes progress; nil discards it.
	Report func(Event)
	// Refresh builds every step anew, whatever its stamp says.
	Refresh bool
}

// DefaultDir is ${CELLA_CACHE:-~/.cache/cella}.
func DefaultDir() (string, error) {
	if dir := os.Getenv("CELLA_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w (set CELLA_CACHE or HOME)", err)
	}
	return filepath.Join(home, ".cache", "cella"), nil
}

// Path is where the step called name keeps its product's file.
func (c *Cache) Path(name string, file ...string) string {
	return filepath.Join(append([]string{c.Dir, name}, file...)...)
}

// Fresh reports whether the product of s is there and was built by this very recipe.
func (c *Cache) Fresh(s Step) bool {
	stamp, err := os.ReadFile(c.Path(s.Name, stampName))
	return err == nil && string(stamp) == s.hash()
}

// Ensure builds the product of s unless it is fresh. It reports whether it built.
func (c *Cache) Ensure(ctx context.Context, s Step) (bool, error) {
	start := time.Now()
	if c.Fresh(s) && !c.Refresh {
		c.report(Event{Step: s.Name, Message: "up to date", Done: true, Cached: true, Elapsed: time.Since(start)})
		return false, nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return false, fmt.Errorf("create the cache directory: %w", err)
	}
	held, err := lock(c.Path(s.Name)+".lock", func() {
		c.report(Event{Step: s.Name, Message: "waiting for another set-up", Elapsed: time.Since(start)})
	})
	if err != nil {
		return false, err
	}
	defer held.Close()
	// Another set-up may have built it while this one waited.
	if c.Fresh(s) && !c.Refresh {
		c.report(Event{Step: s.Name, Message: "up to date", Done: true, Cached: true, Elapsed: time.Since(start)})
		return false, nil
	}
	if err := c.build(ctx, s, start, held); err != nil {
		return false, fmt.Errorf("set up %s: %w", s.Name, err)
	}
	c.report(Event{Step: s.Name, Message: "done", Done: true, Elapsed: time.Since(start)})
	return true, nil
}

func (c *Cache) build(ctx context.Context, s Step, start time.Time, held *os.File) error {
	final := c.Path(s.Name)
	fresh, old := final+".new", final+".old"
	for _, dir := range []string{fresh, old} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	log, err := os.Create(final + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	b := &Build{Dir: fresh, log: log, lock: held, report: func(m string) {
		c.report(Event{Step: s.Name, Message: m, Elapsed: time.Since(start)})
	}}
	if err := s.Build(ctx, b); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, stampName), []byte(s.hash()), 0o644); err != nil {
		return err
	}
	if err := syncTree(fresh); err != nil {
		return err
	}
	// The old product stays whole until the new one can take its name.
	if err := os.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, final); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

func (c *Cache) report(e Event) {
	if c.Report != nil {
		c.Report(e)
	}
}

func (s Step) hash() string {
	sum := sha256.Sum256([]byte(s.Name + "\x00" + s.Recipe))
	return hex.EncodeToString(sum[:]) + "\n"
}

// lock takes an exclusive lock on path, which lasts until the file is closed here and in every process that
// inherited it. If another holds it, it calls waiting and waits.
func lock(path string, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the set-up lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		waiting()
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// syncTree makes the filesystem that holds dir durable, so that a stamp never outlives what it vouches for.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
