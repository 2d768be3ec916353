package files

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// maxEntries bounds one listing: a reply is held in memory as a whole.
const maxEntries = 100_000

// rpcError gives a file system error its Connect code.
func rpcError(op string, err error) error {
	code := rpc.Internal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = rpc.NotFound
	case errors.Is(err, fs.ErrExist):
		code = rpc.AlreadyExists
	case errors.Is(err, fs.ErrPermission):
		code = rpc.PermissionDenied
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG):
		code = rpc.InvalidArgument
	case errors.Is(err, syscall.ELOOP), strings.Contains(err.Error(), "too many links"): // filepath.EvalSymlinks
		code = rpc.FailedPrecondition
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = rpc.ResourceExhausted
	}
	return rpc.Errorf(code, "%s: %v", op, err)
}

func (s *Service) stat(_ *http.Request, call *rpc.Call, req *e2b.PathRequest) (*e2b.EntryResponse, error) {
	_, path, err := s.resolve(call, req.Path)
	if err != nil {
		return nil, err
	}
	return s.entry("stat", path)
}

// entry describes path as the reply of op.
func (s *Service) entry(op, path string) (*e2b.EntryResponse, error) {
	e, err := describe(s.ident.Users(), path)
	if err != nil {
		return nil, rpcError(op, err)
	}
	return &e2b.EntryResponse{Entry: e}, nil
}

func (s *Service) makeDir(_ *http.Request, call *rpc.Call, req *e2b.PathRequest) (*e2b.EntryResponse, error) {
	u, path, err := s.resolve(call, req.Path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, rpc.Errorf(rpc.AlreadyExists, "directory already exists: %s", path)
		}
		return nil, rpc.Errorf(rpc.InvalidArgument, "path already exists but it is not a directory: %s", path)
	}
	if err := makeDirs(path, u); err != nil {
		return nil, rpcError("make directory", err)
	}
	return s.entry("make directory", path)
}

func (s *Service) move(_ *http.Request, call *rpc.Call, req *e2b.MoveRequest) (*e2b.EntryResponse, error) {
	if req.Source == "" || req.Destination == "" {
		return nil, rpc.Errorf(rpc.InvalidArgument, "move: source and destination must be given")
	}
	u, from, err := s.resolve(call, req.Source)
	if err != nil {
		return nil, err
	}
	to, err := s.ident.Path(u, req.Destination)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(from); err != nil {
		return nil, rpcError("move", err)
	}
	if err := makeDirs(filepath.Dir(to), u); err != nil {
		return nil, rpcError("move", err)
	}
	if err := rename(from, to); err != nil {
		return nil, rpcError("move", err)
	}
	return s.entry("move", to)
}

// remove deletes path and all below it. An empty path elsewhere means the home; here it is far more often
// a client's variable that was never set.
func (s *Service) remove(_ *http.Request, call *rpc.Call, req *e2b.PathRequest) (*e2b.Empty, error) {
	if req.Path == "" {
		return nil, rpc.Errorf(rpc.InvalidArgument, "remove: path is missing")
	}
	_, path, err := s.resolve(call, req.Path)
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, rpc.Errorf(rpc.InvalidArgument, "remove: / can't be removed")
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, rpcError("remove", err)
	}
	return &e2b.Empty{}, nil
}

func (s *Service) listDir(r *http.Request, call *rpc.Call, req *e2b.ListDirRequest) (*e2b.ListDirResponse, error) {
	_, dir, err := s.resolve(call, req.Path)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, rpcError("list directory", err)
	}
	if info, err := os.Stat(real); err != nil {
		return nil, rpcError("list directory", err)
	} else if !info.IsDir() {
		return nil, rpc.Errorf(rpc.InvalidArgument, "path is not a directory: %s", dir)
	}
	l := lister{service: s, res: &e2b.ListDirResponse{}, cancelled: r.Context().Err}
	if err := l.list(real, dir, max(int(req.Depth), 1)); err != nil {
		return nil, err
	}
	return l.res, nil
}

// A lister collects a tree's entries, each directory before what is in it.
type lister struct {
	service   *Service
	res       *e2b.ListDirResponse
	cancelled func() error
}

// list adds the entries of dir, which the caller knows by the name shown. It doesn't follow links.
func (l *lister) list(dir, shown string, depth int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return rpcError("list directory", err)
	}
	for _, de := range entries {
		if err := l.cancelled(); err != nil {
			return err
		}
		e, err := describe(l.service.ident.Users(), filepath.Join(dir, de.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the directory was read
		}
		if err != nil {
			return rpcError("list directory", err)
		}
		e.Path = filepath.Join(shown, de.Name())
		if len(l.res.Entries) == maxEntries {
			return rpc.Errorf(rpc.ResourceExhausted, "more than %d entries; list with less depth", maxEntries)
		}
		l.res.Entries = append(l.res.Entries, e)
		if de.IsDir() && depth > 1 {
			err := l.list(filepath.Join(dir, de.Name()), e.Path, depth-1)
			if err != nil && rpcCode(err) != rpc.NotFound {
				return err
			}
		}
	}
	return nil
}

func rpcCode(err error) rpc.Code {
	var e *rpc.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return rpc.Unknown
}
