package memsnap

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// Names of a snapshot's files in its directory.
const (
	MemoryFile   = "memory"
	StateFile    = "state"
	manifestFile = "snapshot.json"
)

const formatVersion = 1

// ErrFormat says that a snapshot was made by another version of this format.
var ErrFormat = errors.New("snapshot has another format version")

// Manifest ties the files of one snapshot together.
type Manifest struct {
	Format      int        `json:"format"`
	Memory      MemoryInfo `json:"memory"`
	StateBytes  int64      `json:"stateBytes"`
	StateCRC32C uint32     `json:"stateCRC32C"`
}

// WriteManifest records the snapshot whose memory and state files the VMM has written into dir, and makes
// all three durable. The caller publishes the directory by renaming it.
func WriteManifest(dir string, memory MemoryInfo) error {
	state, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return fmt.Errorf("write snapshot manifest: %w", err)
	}
	m := Manifest{
		Format: formatVersion, Memory: memory,
		StateBytes: int64(len(state)), StateCRC32C: crc32.Checksum(state, castagnoli),
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manifestFile), data, 0o600); err != nil {
		return fmt.Errorf("write snapshot manifest: %w", err)
	}
	for _, name := range []string{MemoryFile, StateFile, manifestFile, "."} {
		if err := syncPath(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
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

// Snapshot is a loaded snapshot. Both files are sealed memfds: they may be handed to any VMM.
type Snapshot struct {
	Manifest Manifest
	// Memory is mapped MAP_PRIVATE by every clone; the pages that none has written exist once.
	Memory *os.File
	// State is the machine's state in the VMM's own format.
	State *os.File
}

// Open loads and verifies the snapshot in dir. The directory may be removed afterwards.
func Open(dir string) (*Snapshot, error) {
	m, err := readManifest(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	state, err := loadState(filepath.Join(dir, StateFile), m)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, MemoryFile))
	if err != nil {
		state.Close()
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	defer f.Close()
	memory, err := LoadMemory(f, m.Memory)
	if err != nil {
		state.Close()
		return nil, err
	}
	return &Snapshot{Manifest: m, Memory: memory, State: state}, nil
}

func readManifest(name string) (Manifest, error) {
	var m Manifest
	data, err := os.ReadFile(name)
	if err != nil {
		return m, fmt.Errorf("open snapshot: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("open snapshot: %s: %w", name, err)
	}
	if m.Format != formatVersion {
		return m, fmt.Errorf("%w: %s has %d, this build reads %d; build the template again", ErrFormat, name, m.Format, formatVersion)
	}
	if m.Memory.Bytes <= 0 || m.Memory.Bytes%pageSize != 0 {
		return m, fmt.Errorf("open snapshot: %s: memory.bytes %d is not whole pages", name, m.Memory.Bytes)
	}
	return m, nil
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

// Close releases the node's hold; clones that have mapped the memory keep it.
func (s *Snapshot) Close() error {
	return errors.Join(s.Memory.Close(), s.State.Close())
}
