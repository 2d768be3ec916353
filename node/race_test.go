package node

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cella.dev/cella/memsnap"
	"cella.dev/cella/node/worker"
	"cella.dev/cella/vmm"
)

// shortLived is the shape of workers that end as soon as they begin: this test binary, when it is started as one.
var shortLived = vmm.Shape{VCPUs: 666, MemoryBytes: 1}

func init() {
	if len(os.Args) == 4 && os.Args[1] == "vmm" && os.Args[2] == "666" {
		os.Exit(0)
	}
}

// bare returns a node that has its directories and nothing else.
func bare(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	n := &Node{
		opts: Options{State: dir, Run: dir}, log: slog.New(slog.DiscardHandler),
		sandboxes: map[string]*sandbox{}, templates: map[string]*template{},
	}
	if err := os.MkdirAll(n.templatesDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNoSandboxOutlivesItsWorker lets a worker die at any moment around the end of a create: the table must not keep
// the sandbox, which nobody would take out again before its end of life.
func TestNoSandboxOutlivesItsWorker(t *testing.T) {
	n := bare(t)
	for i := range 16 {
		w, err := worker.Start(shortLived)
		if err != nil {
			t.Fatal(err)
		}
		s := &sandbox{Sandbox: Sandbox{ID: fmt.Sprint("i", i)}, worker: w, socket: filepath.Join(n.opts.Run, "none")}
		var watched sync.WaitGroup
		watched.Go(func() { n.watch(s) })
		if i%2 == 0 {
			<-w.Done()
		}
		if i%4 == 0 {
			watched.Wait()
		}
		if _, err := n.admit(s, time.Hour); err != nil && !errors.Is(err, worker.ErrExited) {
			t.Errorf("admit: %v", err)
		}
		watched.Wait()
		if _, err := n.Get(s.ID); !errors.Is(err, ErrNotFound) {
			t.Fatalf("a dead sandbox is listed: %v", err)
		}
	}
}

// build makes a finished build of the template "base" and returns its directory.
func build(t *testing.T, n *Node, id string) string {
	t.Helper()
	dir, err := os.MkdirTemp(n.templatesDir(), buildPrefix)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Create(filepath.Join(dir, memsnap.MemoryName(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	info, err := memsnap.WriteMemory(memory, [][]byte{make([]byte, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{memsnap.StateFile, diskFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(memsnap.WriteManifest(dir, memsnap.Manifest{Memory: info}), writeManifest(dir, Template{ID: id, Alias: "base", CPUCount: 1, MemoryMB: 1}))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTemplatesAreWhatIsOnDisk publishes and removes one template from many sides at once. What a node knows in the
// end must be what the next one would find.
func TestTemplatesAreWhatIsOnDisk(t *testing.T) {
	for range 2 {
		n := bare(t)
		var wg sync.WaitGroup
		for i := range 4 {
			dir := build(t, n, fmt.Sprint(i))
			wg.Go(func() {
				if _, err := n.publish(dir, "base"); err != nil {
					t.Error(err)
				}
				os.RemoveAll(dir)
			})
			wg.Go(func() {
				if err := n.RemoveTemplate("base"); err != nil && !errors.Is(err, ErrTemplateNotFound) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		known, known404 := n.Template("base")
		found, err := openTemplate(filepath.Join(n.templatesDir(), "base"))
		switch {
		case errors.Is(err, os.ErrNotExist) != errors.Is(known404, ErrTemplateNotFound):
			t.Fatalf("known: %v; on disk: %v", known404, err)
		case err == nil && found.ID != known.ID:
			t.Fatalf("template %s is known, %s on disk", known.ID, found.ID)
		}
		if err == nil {
			found.close()
		}
		for _, left := range n.templates {
			left.pool.close()
			left.close()
		}
	}
}

// TestPublishAfterClose: what a closing node does not know any more it would not close either.
func TestPublishAfterClose(t *testing.T) {
	n := bare(t)
	dir := build(t, n, "late")
	n.closed = true
	if _, err := n.publish(dir, "base"); err != nil {
		t.Fatal(err)
	}
	if len(n.templates) != 0 {
		t.Error("a closed node has taken up a template")
	}
	found, err := openTemplate(filepath.Join(n.templatesDir(), "base"))
	if err != nil {
		t.Fatalf("the build was lost: %v", err)
	}
	found.close()
}
