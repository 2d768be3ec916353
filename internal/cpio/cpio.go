// Package cpio writes the archive format that Linux unpacks as an initramfs: "newc", as described in the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst. The output depends on nothing but the input: no
// times, no owners, inode numbers in order.
package cpio

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// File types, as in stat's st_mode.
const (
	typeFile = 0o100000
	typeDir  = 0o040000
	typeChar = 0o020000
	typeLink = 0o120000
)

// Writer writes one archive. Entries appear in the order of the calls; a directory must come before what is
// in it. The first error sticks and is returned by every later call.
type Writer struct {
	w     io.Writer
	n     int64
	inode uint32
	err   error
}

// NewWriter returns a Writer to w. Close must be called to end the archive.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Dir adds an empty directory.
func (c *Writer) Dir(name string, perm uint32) error {
	return c.entry(name, typeDir|perm, 2, 0, 0, 0, nil)
}

// File adds a regular file of exactly size bytes read from r.
func (c *Writer) File(name string, perm uint32, size int64, r io.Reader) error {
	return c.entry(name, typeFile|perm, 1, 0, 0, size, r)
}

// CopyFile adds the file at path.
func (c *Writer) CopyFile(name string, perm uint32, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return c.File(name, perm, st.Size(), f)
}

// Char adds a character device node.
func (c *Writer) Char(name string, perm, major, minor uint32) error {
	return c.entry(name, typeChar|perm, 1, major, minor, 0, nil)
}

// Symlink adds a symbolic link.
func (c *Writer) Symlink(name, target string) error {
	return c.entry(name, typeLink|0o777, 1, 0, 0, int64(len(target)), strings.NewReader(target))
}

// Close writes the trailer. It does not close the underlying writer.
func (c *Writer) Close() error {
	c.inode = ^uint32(0) // The trailer's inode number is 0.
	if err := c.entry("TRAILER!!!", 0, 1, 0, 0, 0, nil); err != nil {
		return err
	}
	// Archives may be put one after another; each then starts at a multiple of four.
	return c.pad()
}

func (c *Writer) entry(name string, mode, links, major, minor uint32, size int64, r io.Reader) error {
	if c.err != nil {
		return c.err
	}
	if size < 0 || size > 0xffffffff {
		c.err = fmt.Errorf("cpio: %s: %d bytes do not fit the format", name, size)
		return c.err
	}
	name = strings.TrimPrefix(name, "/")
	c.inode++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
	// namesize (with its NUL), check
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, len(name)+1, 0, name)
	c.write([]byte(head))
	if c.pad(); c.err != nil {
		return c.err
	}
	if r == nil {
		return nil
	}
	n, err := io.CopyN(c.w, r, size)
	c.n += n
	if err != nil {
		c.err = fmt.Errorf("cpio: %s: %w", name, err)
		return c.err
	}
	return c.pad()
}

// pad fills up to the next multiple of four bytes.
func (c *Writer) pad() error {
	if rest := c.n % 4; rest != 0 {
		c.write(make([]byte, 4-rest))
	}
	return c.err
}

func (c *Writer) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	if err != nil {
		c.err = fmt.Errorf("cpio: %w", err)
	}
}
