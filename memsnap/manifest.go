package memsnap

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Names of a snapshot's files in its directory.
const (
	StateFile    = "state"
	memoryFile   = "memory"
	manifestFile = "snapshot.json"
)

// MemoryName is the file of the memory (0), or of the diff of that number on it (from 1 on).
func MemoryName(i int) string {
	if i == 0 {
		return memoryFile
	}
	return "diff-" + strconv.Itoa(i)
}

// Format versions: a snapshot with its memory whole, and one with diffs. A build that knows only the first
// must not take the second for it.
const (
	formatWhole = 1
	formatDiffs = 2
)

// maxDiffs bounds how long a chain of diffs may get. Each link is a snapshot that somebody took of a sandbox made
// from the last one; a pause adds none, however often it is done.
const maxDiffs = 64

// ErrFormat says that a snapshot was made by another version of this format.
var ErrFormat = errors.New("snapshot has another format version")

// Manifest ties the files of one snapshot together.
type Manifest struct {
	Format int `json:"format"`
	// ID is random: two snapshots have the same memory exactly if they have the same ID.
	ID     string     `json:"id"`
	Memory MemoryInfo `json:"memory"`
	// Base is the ID of the snapshot whose memory the file is; empty if there are no diffs.
	Base        string     `json:"base,omitempty"`
	Diffs       []DiffInfo `json:"diffs,omitempty"`
	StateBytes  int64      `json:"stateBytes"`
	StateCRC32C uint32     `json:"stateCRC32C"`
}

// Child is the manifest of a snapshot that is a diff to this one's memory.
func (m *Manifest) Child(diff DiffInfo) Manifest {
	diff.ID, diff.Parent = newID(), m.ID
	base := m.Base
	if len(m.Diffs) == 0 {
		base = m.ID
	}
	return Manifest{ID: diff.ID, Memory: m.Memory, Base: base, Diffs: append(slices.Clone(m.Diffs), diff)}
}

// Parent is the ID of the snapshot that the last diff is on; empty if there is none.
func (m *Manifest) Parent() string {
	if len(m.Diffs) == 0 {
		return ""
	}
	return m.Diffs[len(m.Diffs)-1].Parent
}

// parent describes the memory that the last diff is on.
func (m *Manifest) parent() (Manifest, bool) {
	n := len(m.Diffs) - 1
	if n < 0 {
		return Manifest{}, false
	}
	p := Manifest{Format: m.Format, ID: m.Diffs[n].Parent, Memory: m.Memory, Base: m.Base, Diffs: m.Diffs[:n:n]}
	if n == 0 {
		p.Format, p.Base = formatWhole, ""
	}
	return p, true
}

func (m *Manifest) check() error {
	if m.Format != formatWhole && m.Format != formatDiffs {
		return fmt.Errorf("%w: format is %d, this build reads %d and %d; make the snapshot again", ErrFormat, m.Format, formatWhole, formatDiffs)
	}
	if m.Memory.Bytes <= 0 || m.Memory.Bytes%pageSize != 0 {
		return fmt.Errorf("memory.bytes %d is not whole pages", m.Memory.Bytes)
	}
	if m.ID == "" {
		m.ID = fmt.Sprintf("%08x-%d", m.Memory.CRC32C, m.Memory.Pages) // templates of builds that gave them no ID
	}
	if len(m.Diffs) > maxDiffs || (len(m.Diffs) > 0) != (m.Format == formatDiffs) {
		return fmt.Errorf("format %d with %d diffs", m.Format, len(m.Diffs))
	}
	want := m.Base
	for i, d := range m.Diffs {
		if d.Parent == "" || d.Parent != want {
			return fmt.Errorf("diffs[%d].parent is %q, the snapshot before it has the ID %q", i, d.Parent, want)
		}
		want = d.ID
	}
	if len(m.Diffs) > 0 && want != m.ID {
		return fmt.Errorf("id is %q, the last diff's is %q", m.ID, want)
	}
	return nil
}

// WriteManifest records the snapshot whose memory and state files have been written into dir. It fills in what it
// finds in dir.
func WriteManifest(dir string, m Manifest) error {
	state, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return fmt.Errorf("write snapshot manifest: %w", err)
	}
	m.StateBytes, m.StateCRC32C = int64(len(state)), crc32.Checksum(state, castagnoli)
	m.Format = formatWhole
	if len(m.Diffs) > 0 {
		m.Format = formatDiffs
	}
	if m.ID == "" {
		m.ID = newID()
	}
	if err := m.check(); err != nil {
		return fmt.Errorf("write snapshot manifest: %w", err)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manifestFile), data, 0o600); err != nil {
		return fmt.Errorf("write snapshot manifest: %w", err)
	}
	return nil
}

// Sync makes the files of a snapshot durable. The caller then publishes the directory by renaming it.
func Sync(dir string) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	names := []string{StateFile, manifestFile, "."}
	for i := range 1 + len(m.Diffs) {
		names = append(names, MemoryName(i))
	}
	for _, name := range names {
		if err := syncPath(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func syncPath(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	return nil
}
