package blockcow

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// xfs mounts a fresh XFS image with reflinks and returns its directory.
func xfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "xfs.img"), filepath.Join(dir, "mnt")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 512<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, mount}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return mount
}

func TestCloneIsIndependentOfItsBase(t *testing.T) {
	dir := xfs(t)
	s, err := Open(filepath.Join(dir, "disks"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.Create(filepath.Join(dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	content := bytes.Repeat([]byte("base"), 1<<18)
	if _, err := base.Write(content); err != nil {
		t.Fatal(err)
	}
	var clones [2]*os.File
	for i := range clones {
		if clones[i], err = s.Clone(base); err != nil {
			t.Fatal(err)
		}
		defer clones[i].Close()
		if _, err := clones[i].WriteAt([]byte{byte('A' + i)}, 8192); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range append(clones[:], base) {
		want := bytes.Clone(content)
		if i < len(clones) {
			want[8192] = byte('A' + i)
		}
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("file %d: content differs from its own writes over the base (err %v)", i, err)
		}
	}
	if names, _ := os.ReadDir(filepath.Join(dir, "disks")); len(names) != 0 {
		t.Errorf("store holds %d names, want none", len(names))
	}
}

func TestPublishNamesAClone(t *testing.T) {
	dir := xfs(t)
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.CreateTemp(t.TempDir(), "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	// Data, a hole of 64 MiB, data.
	if _, err := src.WriteAt([]byte("head"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := src.WriteAt([]byte("tail"), 64<<20); err != nil {
		t.Fatal(err)
	}
	f, err := s.Import(src)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	name := filepath.Join(dir, "published")
	if err := Publish(f, name); err != nil {
		t.Fatal(err)
	}
	if err := Publish(f, name); !errors.Is(err, os.ErrExist) {
		t.Errorf("second publish: %v, want ErrExist", err)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 64<<20+4 || string(got[:4]) != "head" || string(got[64<<20:]) != "tail" {
		t.Errorf("published content is wrong (%d bytes)", len(got))
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > 1<<20 {
		t.Errorf("published file takes %d bytes on disk: the hole was filled", st.Blocks*512)
	}
}

func TestOpenRefusesAFilesystemWithoutReflinks(t *testing.T) {
	// tmpfs can't share extents, on any machine.
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	if _, err := Open(dir); !errors.Is(err, ErrNoReflink) {
		t.Errorf("Open on tmpfs: %v, want ErrNoReflink", err)
	}
}
