package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// describe tells about the file at path. Of a symbolic link, type and mode are the target's and all else
// is the link's own; a link that leads nowhere has no type.
func describe(users *accounts.Database, path string) (*e2b.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	entry := &e2b.EntryInfo{
		Name:         info.Name(),
		Type:         typeOf(info.Mode()),
		Path:         path,
		Size:         rpc.Int64(info.Size()),
		Mode:         rpc.Uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: rpc.NewTimestamp(info.ModTime()),
		Metadata:     readMetadata(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner, entry.Group = users.UserName(st.Uid), users.GroupName(st.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target := path
		entry.Type, entry.Mode = e2b.FileTypeUnspecified, 0
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			target = resolved
			if to, err := os.Stat(resolved); err == nil {
				entry.Type, entry.Mode = typeOf(to.Mode()), rpc.Uint32(to.Mode().Perm())
			}
		}
		entry.SymlinkTarget = &target
	}
	return entry, nil
}

func typeOf(mode fs.FileMode) e2b.FileType {
	switch {
	case mode.IsRegular():
		return e2b.FileTypeFile
	case mode.IsDir():
		return e2b.FileTypeDirectory
	case mode&fs.ModeSymlink != 0:
		return e2b.FileTypeSymlink
	}
	return e2b.FileTypeUnspecified
}

// makeDirs makes dir and what is missing above it, all owned by u.
func makeDirs(dir string, u *accounts.User) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	case !os.IsNotExist(err):
		return err
	}
	if err := makeDirs(filepath.Dir(dir), u); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if os.IsExist(err) {
			return nil // somebody else was faster
		}
		return err
	}
	return chown(dir, u)
}

// chown gives a file to u. An agent that isn't root has only its own user to give to.
func chown(path string, u *accounts.User) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.Lchown(path, int(u.UID), int(u.GID)); err != nil {
		return fmt.Errorf("change owner: %w", err)
	}
	return nil
}
