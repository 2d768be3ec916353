package buildcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func step(recipe string, built *int) Step {
	return Step{Name: "thing", Recipe: recipe, Build: func(_ context.Context, b *Build) error {
		*built++
		return os.WriteFile(filepath.Join(b.Dir, "product"), []byte(recipe), 0o644)
	}}
}

func product(t *testing.T, c *Cache) string {
	t.Helper()
	got, err := os.ReadFile(c.Path("thing", "product"))
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestEnsureBuildsOncePerRecipe(t *testing.T) {
	c := &Cache{Dir: filepath.Join(t.TempDir(), "cache")}
	n := 0
	for _, want := range []struct {
		recipe string
		built  bool
	}{{"one", true}, {"one", false}, {"two", true}, {"two", false}, {"one", true}} {
		built, err := c.Ensure(t.Context(), step(want.recipe, &n))
		if err != nil || built != want.built {
			t.Fatalf("Ensure(%s) = %v, %v; want %v", want.recipe, built, err, want.built)
		}
		if got := product(t, c); got != want.recipe {
			t.Fatalf("the product is of recipe %q, want %q", got, want.recipe)
		}
	}
	c.Refresh = true
	if built, err := c.Ensure(t.Context(), step("one", &n)); !built || err != nil {
		t.Errorf("Ensure with Refresh = %v, %v; want a build", built, err)
	}
}

func TestFailedBuildLeavesTheOldProduct(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	n := 0
	if _, err := c.Ensure(t.Context(), step("good", &n)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no network")
	bad := Step{Name: "thing", Recipe: "bad", Build: func(_ context.Context, b *Build) error {
		os.WriteFile(filepath.Join(b.Dir, "product"), []byte("half"), 0o644)
		return broken
	}}
	if _, err := c.Ensure(t.Context(), bad); !errors.Is(err, broken) {
		t.Fatalf("error is %v, want the build's", err)
	}
	if got := product(t, c); got != "good" {
		t.Errorf("the product is %q, want the old one", got)
	}
	if _, err := os.Stat(c.Path("thing.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failed build's directory is still there: %v", err)
	}
}

// A build that was killed leaves its directory; the next one must not take it for its own work.
func TestLeftoversOfAKilledBuildAreNotUsed(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	if err := os.MkdirAll(c.Path("thing.new", "product"), 0o755); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := c.Ensure(t.Context(), step("good", &n)); err != nil {
		t.Fatal(err)
	}
	if got := product(t, c); got != "good" {
		t.Errorf("the product is %q", got)
	}
}

func TestTwoAtOnceBuildOnce(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	n := 0 // The step's lock guards it.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := c.Ensure(t.Context(), step("same", &n)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n != 1 {
		t.Errorf("built %d times, want once", n)
	}
}

func TestProgress(t *testing.T) {
	var got []Event
	c := &Cache{Dir: t.TempDir(), Report: func(e Event) {
		e.Elapsed = 0
		got = append(got, e)
	}}
	s := Step{Name: "thing", Recipe: "r", Build: func(_ context.Context, b *Build) error {
		b.Progress("unpacking %d files", 3)
		return nil
	}}
	for range 2 {
		if _, err := c.Ensure(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	want := []Event{
		{Step: "thing", Message: "unpacking 3 files"},
		{Step: "thing", Message: "done", Done: true},
		{Step: "thing", Message: "up to date", Done: true, Cached: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("events are %+v, want %+v", got, want)
	}
}

func TestRunErrorCarriesTheLastLines(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	s := Step{Name: "thing", Build: func(ctx context.Context, b *Build) error {
		return b.Run(ctx, "sh", "-c", "seq 100; echo out of disk >&2; exit 7")
	}}
	_, err := c.Ensure(t.Context(), s)
	if err == nil || !strings.HasPrefix(err.Error(), "set up thing: sh: exit status 7\n90\n") || !strings.HasSuffix(err.Error(), "100\nout of disk") {
		t.Errorf("error is %q", err)
	}
	log, _ := os.ReadFile(c.Path("thing.log"))
	if !strings.HasPrefix(string(log), "+ sh -c") || strings.Count(string(log), "\n") != 102 {
		t.Errorf("the log does not hold the command and all its output: %q", log)
	}
}

// What a build's command started goes on holding the lock when this process is gone, so a new set-up waits for it.
func TestWaitingIsReported(t *testing.T) {
	dir := t.TempDir()
	held, err := lock(filepath.Join(dir, "thing.lock"), func() { t.Error("waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	c := &Cache{Dir: dir, Report: func(e Event) {
		messages = append(messages, e.Message)
		held.Close() // The other set-up ends once this one has said that it waits.
	}}
	if _, err := c.Ensure(t.Context(), Step{Name: "thing", Build: func(context.Context, *Build) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"waiting for another set-up", "done"}; !reflect.DeepEqual(messages, want) {
		t.Errorf("messages are %q, want %q", messages, want)
	}
}
