package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// rename moves from to to. Between two file systems, where rename(2) can't, a regular file is copied.
func rename(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s and %s are on different file systems, where only files can be moved: %w", from, to, syscall.EXDEV)
	}
	if err := copyFile(from, to, info); err != nil {
		return err
	}
	return os.Remove(from)
}

// copyFile copies content, mode, owner, times and metadata, and shows the copy only when it is complete.
func copyFile(from, to string, info fs.FileInfo) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return replaceFile(to, func(dst *os.File) error {
		if _, err := io.Copy(dst, src); err != nil {
			return err
		}
		if err := dst.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			if err := dst.Chown(int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
		}
		if err := replaceMetadata(dst.Name(), readMetadata(from)); err != nil {
			return err
		}
		return os.Chtimes(dst.Name(), info.ModTime(), info.ModTime())
	})
}

// replaceFile writes a file beside path and puts it in path's place when write has succeeded.
func replaceFile(path string, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".cella-*")
	if err != nil {
		return err
	}
	err = write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
