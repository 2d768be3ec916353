package lab

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Copy is a file or directory that goes into or comes out of the lab.
type Copy struct {
	From, To string
}

// writeIn writes a tar of the copies, named as they shall be called in the lab. Symbolic links at the top are
// followed, the ones inside a directory are kept.
func writeIn(w io.Writer, copies []Copy) error {
	t := tar.NewWriter(w)
	for _, c := range copies {
		from, err := filepath.EvalSymlinks(c.From)
		if err != nil {
			return fmt.Errorf("copy into the lab: %w", err)
		}
		err = filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			return addFile(t, file, path.Join(c.To, filepath.ToSlash(rel)))
		})
		if err != nil {
			return fmt.Errorf("copy %s into the lab: %w", c.From, err)
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, file, name string) error {
	st, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if st.Mode()&(fs.ModeSocket|fs.ModeNamedPipe|fs.ModeDevice) != 0 {
		return nil
	}
	link := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	// Everything in the lab is root's, whoever owns it here.
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = strings.TrimPrefix(name, "/"), 0, 0, "", ""
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}

// readOut unpacks the lab's answer, a tar whose entries are called INDEX/path-inside, INDEX counting copies.
// What comes out of the lab may not leave the place it was asked into.
func readOut(r io.Reader, copies []Copy) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// Read on to the stream's end: tar pads it with zeros that somebody is waiting to send.
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("read the lab's files: %w", err)
		}
		index, rest, _ := strings.Cut(h.Name, "/")
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= len(copies) {
			return fmt.Errorf("the lab sent a file that was not asked for: %q", h.Name)
		}
		if err := place(t, h, copies[i].From, copies[i].To, strings.Trim(rest, "/")); err != nil {
			return fmt.Errorf("copy %s out of the lab: %w", copies[i].From, err)
		}
	}
}

// place writes one entry of the copy from → to: the copied file itself where rel is empty, else something inside the directory to.
func place(r io.Reader, h *tar.Header, from, to, rel string) error {
	if rel == "" && h.Typeflag == tar.TypeReg {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if st, err := os.Stat(to); err == nil && st.IsDir() {
			to = filepath.Join(to, path.Base(from))
		}
		return writeFile(func(flag int, perm fs.FileMode) (*os.File, error) { return os.OpenFile(to, flag, perm) }, h, r)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	if rel == "" {
		return nil
	}
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(rel, 0o755)
	case tar.TypeSymlink:
		if err := root.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(h.Linkname, rel)
	case tar.TypeReg:
		return writeFile(func(flag int, perm fs.FileMode) (*os.File, error) { return root.OpenFile(rel, flag, perm) }, h, r)
	}
	return nil
}

func writeFile(open func(int, fs.FileMode) (*os.File, error), h *tar.Header, r io.Reader) error {
	f, err := open(os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(h.Mode)&fs.ModePerm)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
