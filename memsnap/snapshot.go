package memsnap

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Snapshot is a loaded snapshot. Both files are sealed memfds: they may be handed to any VMM.
type Snapshot struct {
	Manifest Manifest
	// Memory is mapped MAP_PRIVATE by every clone; the pages that none has written exist once.
	Memory *os.File
	// State is the machine's state in the VMM's own format.
	State *os.File
	// files are what Memory was loaded from, for generations that build on it.
	files []*os.File
	refs  atomic.Int64
}

// Open loads and verifies the snapshot in dir. The directory may be removed afterwards.
func Open(dir string) (*Snapshot, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	state, err := loadState(filepath.Join(dir, StateFile), m)
	if err != nil {
		return nil, err
	}
	s, err := openMemory(dir, m)
	if err != nil {
		state.Close()
		return nil, err
	}
	s.State = state
	return s, nil
}

// OpenParent loads what the generation in dir is a diff to. The result has memory and no state.
func OpenParent(dir string) (*Snapshot, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	parent, ok := m.parent()
	if !ok {
		return nil, fmt.Errorf("open snapshot: %s: diffs: there is none, so it has no parent", dir)
	}
	return openMemory(dir, parent)
}

func openMemory(dir string, m Manifest) (*Snapshot, error) {
	s := &Snapshot{Manifest: m}
	s.refs.Store(1)
	for i := range 1 + len(m.Diffs) {
		f, err := os.Open(filepath.Join(dir, MemoryName(i)))
		if err != nil {
			closeAll(s.files)
			return nil, fmt.Errorf("open snapshot: %w", err)
		}
		s.files = append(s.files, f)
	}
	var err error
	if s.Memory, err = loadMemory(s.files, m); err != nil {
		closeAll(s.files)
		return nil, err
	}
	return s, nil
}

// Files are the memory file and the diffs that Memory was loaded from, in the order of MemoryName. They stay the
// snapshot's, and stay readable after their directory is gone.
func (s *Snapshot) Files() []*os.File { return s.files }

// Retain has the snapshot stay open for one Close more.
func (s *Snapshot) Retain() *Snapshot {
	s.refs.Add(1)
	return s
}

// Close releases one hold; the last closes the files. Clones that have mapped the memory keep it.
func (s *Snapshot) Close() error {
	if s.refs.Add(-1) > 0 {
		return nil
	}
	err := errors.Join(s.Memory.Close(), closeAll(s.files))
	if s.State != nil {
		err = errors.Join(err, s.State.Close())
	}
	return err
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Generation is a snapshot that is not loaded: its last diff is still to be applied to its parent's memory.
type Generation struct {
	Manifest Manifest
	// State is a sealed memfd.
	State *os.File
	// Diff is nil where the snapshot has its memory whole.
	Diff *os.File
}

// OpenGeneration verifies the manifest and the state in dir. The diff is verified when it is applied.
func OpenGeneration(dir string) (*Generation, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	g := &Generation{Manifest: m}
	if g.State, err = loadState(filepath.Join(dir, StateFile), m); err != nil {
		return nil, err
	}
	if len(m.Diffs) > 0 {
		if g.Diff, err = os.Open(filepath.Join(dir, MemoryName(len(m.Diffs)))); err != nil {
			g.State.Close()
			return nil, fmt.Errorf("open snapshot: %w", err)
		}
	}
	return g, nil
}

// LastDiff describes Diff, which must not be nil.
func (g *Generation) LastDiff() DiffInfo { return g.Manifest.Diffs[len(g.Manifest.Diffs)-1] }

// Close closes the files.
func (g *Generation) Close() error {
	err := g.State.Close()
	if g.Diff != nil {
		err = errors.Join(err, g.Diff.Close())
	}
	return err
}

func loadState(name string, m Manifest) (*os.File, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	if int64(len(data)) != m.StateBytes || crc32.Checksum(data, castagnoli) != m.StateCRC32C {
		return nil, fmt.Errorf("open snapshot: %s is damaged: it does not match the manifest's size and checksum", name)
	}
	f, err := newMemfd("cella-state", int64(len(data)))
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("load state: %w", err)
	}
	if err := seal(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func readManifest(dir string) (Manifest, error) {
	var m Manifest
	name := filepath.Join(dir, manifestFile)
	data, err := os.ReadFile(name)
	if err != nil {
		return m, fmt.Errorf("open snapshot: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("open snapshot: %s: %w", name, err)
	}
	if err := m.check(); err != nil {
		return m, fmt.Errorf("open snapshot: %s: %w", name, err)
	}
	return m, nil
}
