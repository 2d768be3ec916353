package files

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"cella.dev/cella/guest/agent/e2b"
)

// newTree watches a temporary directory.
func newTree(t *testing.T) *tree {
	t.Helper()
	w, err := fsnotify.NewBufferedWatcher(256)
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{root: t.TempDir(), recursive: true, watcher: w, found: map[string]time.Time{}}
	t.Cleanup(func() { tr.close() })
	if err := tr.add(tr.root, nil); err != nil {
		t.Fatal(err)
	}
	return tr
}

var errSeen = errors.New("seen")

// collect runs the tree until last has been created, and lists what has.
func collect(t *testing.T, tr *tree, last string) (names []string) {
	t.Helper()
	err := tr.run(t.Context().Done(), func(ev *e2b.FilesystemEvent) error {
		if ev.Type != e2b.EventCreate {
			return nil
		}
		names = append(names, ev.Name)
		if ev.Name == last {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		t.Fatalf("run: %v after %v", err, names)
	}
	return names
}

func TestDeepTreeIsReportedOnceEach(t *testing.T) {
	tr := newTree(t)
	if err := os.MkdirAll(filepath.Join(tr.root, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tr.root, "a/b/c/f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tr.root, "last"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got := collect(t, tr, "last")
	slices.Sort(got)
	if want := []string{"a", "a/b", "a/b/c", "a/b/c/f", "last"}; !slices.Equal(got, want) {
		t.Errorf("created %v, want %v", got, want)
	}
}

func TestDirectoryReplacedBetweenTwoReads(t *testing.T) {
	tr := newTree(t)
	dir := filepath.Join(tr.root, "d")
	for range 50 {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if got := collect(t, tr, "d/f"); !slices.Contains(got, "d/f") {
			t.Fatalf("created %v", got)
		}
	}
}
