package memsnap

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sample is two regions: pages of A, zeros and B, then zeros and C.
func sample() [][]byte {
	first := make([]byte, 600*pageSize)
	copy(first, bytes.Repeat([]byte("A"), 300*pageSize)) // more than one write's worth
	first[599*pageSize] = 'B'
	second := make([]byte, 8*pageSize)
	second[7*pageSize+4095] = 'C'
	return [][]byte{first, second}
}

func write(t *testing.T, ram [][]byte) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, memoryFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := WriteMemory(f, ram)
	if err != nil {
		t.Fatal(err)
	}
	if info.Bytes != 608*pageSize || info.Pages != 302 {
		t.Fatalf("info = %+v, want 608 pages of which 302 hold data", info)
	}
	if err := os.WriteFile(filepath.Join(dir, StateFile), []byte("machine state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteManifest(dir, Manifest{Memory: info}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpenGivesBackWhatWasWritten(t *testing.T) {
	ram := sample()
	s, err := Open(write(t, ram))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make([]byte, s.Manifest.Memory.Bytes)
	if _, err := s.Memory.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Join(ram, nil)) {
		t.Error("memory differs")
	}
	state := make([]byte, 13)
	if _, err := s.State.ReadAt(state, 0); err != nil || string(state) != "machine state" {
		t.Errorf("state = %q, %v", state, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.Memory.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > 310*pageSize {
		t.Errorf("memfd takes %d bytes: zero pages were filled", st.Blocks*512)
	}
}

func TestTemplateMemoryCannotBeWritten(t *testing.T) {
	s, err := Open(write(t, sample()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Memory.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	if _, err := unix.Mmap(int(s.Memory.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("a writable shared mapping was allowed")
	}
	clone, err := unix.Mmap(int(s.Memory.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(clone)
	clone[0] = 'x'
	var p [1]byte
	if _, err := s.Memory.ReadAt(p[:], 0); err != nil || p[0] != 'A' {
		t.Errorf("a clone's write reached the template: %q, %v", p, err)
	}
}

func TestOpenRefusesDamage(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(dir string) error
		want   string
	}{
		{"memory bit flip", func(dir string) error { return poke(filepath.Join(dir, memoryFile), 5*pageSize, 'Z') }, "content is damaged"},
		{"page appears in a hole", func(dir string) error { return poke(filepath.Join(dir, memoryFile), 400*pageSize, 'Z') }, "content is damaged"},
		{"memory truncated", func(dir string) error { return os.Truncate(filepath.Join(dir, memoryFile), 100*pageSize) }, "the manifest says"},
		{"memory missing", func(dir string) error { return os.Remove(filepath.Join(dir, memoryFile)) }, "no such file"},
		{"state bit flip", func(dir string) error { return poke(filepath.Join(dir, StateFile), 3, 'Z') }, "state is damaged"},
		{"state truncated", func(dir string) error { return os.Truncate(filepath.Join(dir, StateFile), 3) }, "state is damaged"},
		{"manifest cut", func(dir string) error { return os.Truncate(filepath.Join(dir, manifestFile), 20) }, "snapshot.json"},
		{"manifest missing", func(dir string) error { return os.Remove(filepath.Join(dir, manifestFile)) }, "no such file"},
		{"newer format", func(dir string) error {
			name := filepath.Join(dir, manifestFile)
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(name, bytes.Replace(data, []byte(`"format": 1`), []byte(`"format": 3`), 1), 0o600)
		}, "another format version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := write(t, sample())
			if err := tc.damage(dir); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
		})
	}
}

func poke(name string, off int64, b byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{b}, off)
	return err
}
