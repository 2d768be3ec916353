package blockcow

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoReflink says that a directory's filesystem cannot share extents between files.
var ErrNoReflink = errors.New("the filesystem has no reflinks (use XFS with reflink=1, or btrfs; `cella doctor` says what this machine lacks)")

// Store makes writable clones of base images in one directory.
//
// A clone has no name: it is an O_TMPFILE inode that vanishes with its last file descriptor, so that a crash
// of any process leaves no clone behind and nothing has to be swept. Publish gives one a name.
type Store struct {
	dir string
}

// Open returns the store in dir, creating the directory, after trying that the filesystem has reflinks.
// The error wraps ErrNoReflink where it has none.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create disk store: %w", err)
	}
	s := &Store{dir: dir}
	if err := s.probe(); err != nil {
		return nil, fmt.Errorf("disk store %s: %w", dir, err)
	}
	return s, nil
}

// probe clones one block. A file of zero length would clone on any filesystem.
func (s *Store) probe() error {
	src, err := s.unnamed()
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := src.Write(make([]byte, 4096)); err != nil {
		return fmt.Errorf("write probe: %w", err)
	}
	clone, err := s.Clone(src)
	if err != nil {
		return err
	}
	return clone.Close()
}

// Clone returns a new unnamed file that shares all of base's extents until either is written. It costs
// microseconds and no space, whatever base's size. Base must be on the store's filesystem.
func (s *Store) Clone(base *os.File) (*os.File, error) {
	f, err := s.unnamed()
	if err != nil {
		return nil, err
	}
	if err := reflink(f, base); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Import returns a new unnamed file with base's content: a clone where base is on the store's filesystem,
// and a copy that keeps holes where it is elsewhere.
func (s *Store) Import(base *os.File) (*os.File, error) {
	f, err := s.Clone(base)
	if err == nil || !errors.Is(err, ErrNoReflink) {
		return f, err
	}
	if f, err = s.unnamed(); err != nil {
		return nil, err
	}
	if err := copySparse(f, base); err != nil {
		f.Close()
		return nil, fmt.Errorf("import %s: %w", base.Name(), err)
	}
	return f, nil
}

func (s *Store) unnamed() (*os.File, error) {
	fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create unnamed file in", Path: s.dir, Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(s.dir, "(clone)")), nil
}

// Publish makes an unnamed file durable and gives it a name, which must not exist yet and must be on the
// store's filesystem. The caller syncs the directory once all of its files are there.
func Publish(f *os.File, name string) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	// AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH; the link through /proc needs nothing.
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: f.Name(), New: name, Err: err}
	}
	return nil
}

func reflink(dst, src *os.File) error {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("clone %s: %w: %w", src.Name(), ErrNoReflink, err)
	default:
		return fmt.Errorf("clone %s: %w", src.Name(), err)
	}
}

// copySparse copies src's data extents to the same offsets of dst.
func copySparse(dst, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return err
	}
	for off := int64(0); off < info.Size(); {
		start, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		end, err := unix.Seek(int(src.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		if err := copyRange(dst, src, start, end); err != nil {
			return err
		}
		off = end
	}
	return nil
}

func copyRange(dst, src *os.File, start, end int64) error {
	buf := make([]byte, 1<<20)
	for off := start; off < end; {
		n, err := src.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if n == 0 && err != nil {
			return fmt.Errorf("read at %d: %w", off, err)
		}
		if _, err := dst.WriteAt(buf[:n], off); err != nil {
			return fmt.Errorf("write at %d: %w", off, err)
		}
		off += int64(n)
	}
	return nil
}
