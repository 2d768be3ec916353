package files

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// A tree reports the changes in a directory, and in all below it if it is recursive.
//
// inotify watches single directories, so a new one is watched only a moment after it was made, and what
// was put into it before would go unseen. A tree therefore reads each new directory after it has begun to
// watch it, and reports what it finds as created, unless inotify reports it as well.
type tree struct {
	root      string
	recursive bool
	watcher   *fsnotify.Watcher
	// entries says that events describe the file; users names owners for that.
	entries bool
	users   *accounts.Database

	// found are paths that were reported because they were there when their directory was first read, and
	// when that was. inotify's own report of the same creation, which is in its queue then if there is one
	// at all, is dropped. run alone uses it.
	found map[string]time.Time
}

// foundFor is how long such a report may take; after that a creation is a new one.
const foundFor = time.Second

// networkFS are the file systems whose changes inotify sees only in part (linux/magic.h).
var networkFS = map[uint32]bool{
	0x6969: true, 0xff534d42: true, 0xfe534d42: true, 0x65735546: true, 0x01021997: true, 0x517b: true,
}

// openTree begins to watch. Events are there to be read with run.
func (s *Service) openTree(path string, req *e2b.WatchRequest) (*tree, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, rpcError("watch", err)
	}
	if !info.IsDir() {
		return nil, rpc.Errorf(rpc.InvalidArgument, "path %s is not a directory", path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, rpcError("watch", err)
	}
	if networkFS[uint32(st.Type)] && !req.AllowNetworkMounts {
		return nil, rpc.Errorf(rpc.InvalidArgument, "cannot watch path on network filesystem: %s", path)
	}
	w, err := fsnotify.NewBufferedWatcher(256)
	if err != nil {
		return nil, rpc.Errorf(rpc.ResourceExhausted, "create watcher: %v", err)
	}
	t := &tree{
		root: path, recursive: req.Recursive, watcher: w, found: map[string]time.Time{},
		entries: req.IncludeEntry, users: s.ident.Users(),
	}
	if err := t.add(path, nil); err != nil {
		w.Close()
		return nil, err
	}
	return t, nil
}

// add watches dir and, in a recursive tree, all below; links are not followed. Each entry found is passed
// to report, if there is one.
func (t *tree) add(dir string, report func(path string)) error {
	if err := t.watcher.Add(dir); err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return nil // gone again, or never a directory
		case errors.Is(err, unix.ENOSPC):
			return rpc.Errorf(rpc.ResourceExhausted, "watch %s: too many watches; raise fs.inotify.max_user_watches", dir)
		}
		return rpc.Errorf(rpc.Internal, "watch %s: %v", dir, err)
	}
	if !t.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone again
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if report != nil {
			report(path)
		}
		if e.IsDir() {
			if err := t.add(path, report); err != nil {
				return err
			}
		}
	}
	return nil
}

// run passes events to emit until emit fails, done is closed or watching fails.
func (t *tree) run(done <-chan struct{}, emit func(*e2b.FilesystemEvent) error) error {
	for {
		select {
		case <-done:
			return nil
		case err, ok := <-t.watcher.Errors:
			if !ok {
				return nil
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				return rpc.Errorf(rpc.ResourceExhausted, "watch %s: too many changes at once; some were lost", t.root)
			}
			return rpc.Errorf(rpc.Internal, "watch %s: %v", t.root, err)
		case ev, ok := <-t.watcher.Events:
			if !ok {
				return nil
			}
			if err := t.handle(ev, emit); err != nil {
				return err
			}
		}
	}
}

// kinds pairs inotify's operations with the protocol's, in the order in which they are reported.
var kinds = []struct {
	op   fsnotify.Op
	kind e2b.EventType
}{
	{fsnotify.Create, e2b.EventCreate},
	{fsnotify.Rename, e2b.EventRename},
	{fsnotify.Chmod, e2b.EventChmod},
	{fsnotify.Write, e2b.EventWrite},
	{fsnotify.Remove, e2b.EventRemove},
}

func (t *tree) handle(ev fsnotify.Event, emit func(*e2b.FilesystemEvent) error) error {
	for _, k := range kinds {
		if !ev.Op.Has(k.op) {
			continue
		}
		at, known := t.found[ev.Name]
		if known && k.kind != e2b.EventChmod && k.kind != e2b.EventWrite {
			delete(t.found, ev.Name)
		}
		if known && k.kind == e2b.EventCreate && time.Since(at) < foundFor {
			continue
		}
		if err := emit(t.event(ev.Name, k.kind)); err != nil {
			return err
		}
	}
	if t.recursive && ev.Op.Has(fsnotify.Create) {
		if info, err := os.Lstat(ev.Name); err == nil && info.IsDir() {
			return t.catchUp(ev.Name, emit)
		}
	}
	return nil
}

// catchUp watches a directory that has appeared, and reports what is in it already.
func (t *tree) catchUp(dir string, emit func(*e2b.FilesystemEvent) error) error {
	now := time.Now()
	maps.DeleteFunc(t.found, func(_ string, at time.Time) bool { return now.Sub(at) > foundFor })
	var failed error
	err := t.add(dir, func(path string) {
		if failed == nil {
			t.found[path] = now
			failed = emit(t.event(path, e2b.EventCreate))
		}
	})
	return errors.Join(failed, err)
}

// event makes an event; removed and renamed files can't be described any more.
func (t *tree) event(path string, kind e2b.EventType) *e2b.FilesystemEvent {
	name, err := filepath.Rel(t.root, path)
	if err != nil {
		name = strings.TrimPrefix(path, t.root+"/")
	}
	ev := &e2b.FilesystemEvent{Name: name, Type: kind}
	if t.entries && kind != e2b.EventRemove && kind != e2b.EventRename {
		if entry, err := describe(t.users, path); err == nil {
			ev.Entry = entry
		}
	}
	return ev
}

func (t *tree) close() error {
	if err := t.watcher.Close(); err != nil {
		return fmt.Errorf("stop watching %s: %w", t.root, err)
	}
	return nil
}
