package inside

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/lab/proto"
)

// beatInterval is how often the host hears that the lab is alive, on the lab's own clock.
const beatInterval = 10 * time.Second

// serve does the one thing the lab was started for, and answers.
func serve(conn *proto.Conn) error {
	if err := conn.Send(proto.Hello, nil); err != nil {
		return err
	}
	t, payload, err := conn.Receive()
	if err != nil {
		return err
	}
	if t != proto.Start {
		return fmt.Errorf("the host sent frame type %d before it said what to run", t)
	}
	var req proto.StartRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	now := unix.NsecToTimespec(req.UnixNano)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	stop := beat(conn)
	status, err := run(conn, req)
	stop()
	if err != nil {
		return err
	}
	if err := conn.SendJSON(proto.Exit, status); err != nil {
		return err
	}
	if err := pack(conn.Writer(proto.Archive), req.Out); err != nil {
		return err
	}
	if err := conn.Send(proto.Archive, nil); err != nil {
		return err
	}
	// The host ends the lab once it has read this far; until then nothing that is on its way may be lost.
	time.Sleep(time.Hour)
	return nil
}

// beat sends a Beat frame at every interval until the function it returns is called.
func beat(conn *proto.Conn) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(beatInterval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				conn.Send(proto.Beat, nil) // A broken port shows in the frames that matter.
			}
		}
	}()
	return func() { close(done) }
}

// unpack writes the tar stream on a device under root.
func unpack(device, root string) error {
	disk, err := os.Open(device)
	if err != nil {
		return err
	}
	defer disk.Close()
	t := tar.NewReader(disk)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(t, h, filepath.Join(root, h.Name)); err != nil {
			return err
		}
	}
}

func unpackEntry(r io.Reader, h *tar.Header, name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(h.Mode)&fs.ModePerm)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("%s is of a kind that is not copied: %q", h.Name, h.Typeflag)
}

// pack writes the paths as a tar stream whose entries are called INDEX/path-inside. A path that is not there
// is left out; the host notices.
func pack(w io.Writer, paths []string) error {
	t := tar.NewWriter(w)
	for i, root := range paths {
		err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
			if err != nil {
				if file == root && errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			rel, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			return packEntry(t, file, path.Join(fmt.Sprint(i), rel))
		})
		if err != nil {
			return fmt.Errorf("copy %s out of the lab: %w", root, err)
		}
	}
	return t.Close()
}

func packEntry(t *tar.Writer, file, name string) error {
	st, err := os.Lstat(file)
	if err != nil {
		return err
	}
	link := ""
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	case !st.IsDir() && !st.Mode().IsRegular():
		return nil
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name = name
	if err := t.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(t, f, h.Size)
	return err
}
