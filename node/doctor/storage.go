package doctor

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// reflinkFacts says how a clone in the state directory went, and what could be made where it did not go.
type reflinkFacts struct {
	// dir is where it was tried: the state directory or its nearest existing parent.
	dir       string
	freeBytes uint64
	// cloneErr is nil if the directory can reflink.
	cloneErr error
	// mkfsXFS and loop say whether an XFS image can be made and mounted here.
	mkfsXFS, loop bool
}

func probeReflink(stateDir string) (reflinkFacts, error) {
	dir, err := nearestDir(stateDir)
	if err != nil {
		return reflinkFacts{}, err
	}
	f := reflinkFacts{dir: dir}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return f, fmt.Errorf("statfs %s: %w", dir, err)
	}
	f.freeBytes = st.Bavail * uint64(st.Bsize)
	f.cloneErr = tryClone(dir)
	_, err = exec.LookPath("mkfs.xfs")
	f.mkfsXFS = err == nil
	if ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0); err == nil {
		f.loop = true
		ctl.Close()
	}
	return f, nil
}

// nearestDir walks up from path to the first directory that exists.
func nearestDir(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for {
		st, err := os.Stat(path)
		switch {
		case err == nil && st.IsDir():
			return path, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", path)
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		path = filepath.Dir(path)
	}
}

// tryClone reflinks one nameless file into another: whatever happens, nothing stays behind.
func tryClone(dir string) error {
	src, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := src.Write(make([]byte, 64<<10)); err != nil {
		return err
	}
	return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
}

func judgeReflink(f reflinkFacts, err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: "sandboxes' disks can't be kept there",
			Do: "name another directory with --state"}
	}
	const gb = 1e9
	if f.cloneErr == nil {
		c := Check{Status: OK, Found: fmt.Sprintf("%s clones files (FICLONE), %.1f GB free", f.dir, float64(f.freeBytes)/gb)}
		if f.freeBytes < 2*gb {
			c.Status, c.Means, c.Do = Warn, "a template and a few sandboxes fill it", "make room or name another directory with --state"
		}
		return c
	}
	c := Check{Status: Fail, Found: fmt.Sprintf("%s can't clone files (FICLONE: %v)", f.dir, f.cloneErr),
		Means: "every sandbox would copy its template's disk"}
	if errors.Is(f.cloneErr, fs.ErrPermission) {
		c.Do = "run as root, or name a directory of your own with --state"
		return c
	}
	c.Do = "an XFS image can be loop-mounted there: `truncate -s 20G IMG && mkfs.xfs -m reflink=1 IMG && mount -o loop IMG DIR`"
	var lacks []string
	if !f.mkfsXFS {
		lacks = append(lacks, "mkfs.xfs is missing (`apt-get install xfsprogs`)")
	}
	if !f.loop {
		lacks = append(lacks, "/dev/loop-control does not open (`modprobe loop`, as root)")
	}
	if len(lacks) > 0 {
		c.Do += "; first: " + strings.Join(lacks, ", ")
	}
	return c
}

// errUnset is an asset whose place nobody named.
var errUnset = errors.New("no path given")

// probeELF reads the headers of an unpacked kernel.
func probeELF(path string) error {
	if path == "" {
		return errUnset
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC {
		return fmt.Errorf("%s is %v for %v, not an x86-64 kernel", path, f.Type, f.Machine)
	}
	return nil
}

// probeExt4 reads the magic of an ext4 superblock: 16 bits, little-endian, 0x38 into the block at 1024
// (kernel Documentation/filesystems/ext4/super.rst).
func probeExt4(path string) error {
	if path == "" {
		return errUnset
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 1024+0x38); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read superblock of %s: %w", path, err)
	}
	if binary.LittleEndian.Uint16(magic[:]) != 0xef53 {
		return fmt.Errorf("%s is not an ext4 image", path)
	}
	return nil
}

func judgeAsset(what, path string, err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: "there is no usable " + what, Do: "run `cella setup`"}
	}
	return Check{Status: OK, Found: path}
}
