package worker

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		if conns[i], err = unixConn(os.NewFile(uintptr(fd), "pair")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

func TestFilesTravelWithAMessage(t *testing.T) {
	a, b := pair(t)
	var sent []*os.File
	for _, content := range []string{"one", "two"} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.WriteString(content)
		sent = append(sent, f)
	}
	if err := send(a, request{Op: opSave, Cmdline: "x=1"}, sent...); err != nil {
		t.Fatal(err)
	}
	var got request
	files, err := receive(b, &got)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	if got.Op != opSave || got.Cmdline != "x=1" || len(files) != 2 {
		t.Fatalf("received %+v with %d files", got, len(files))
	}
	for i, want := range []string{"one", "two"} {
		buf := make([]byte, 3)
		if _, err := files[i].ReadAt(buf, 0); err != nil || string(buf) != want {
			t.Errorf("file %d holds %q (%v), want %q", i, buf, err, want)
		}
		if flags, _ := unix.FcntlInt(files[i].Fd(), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("file %d would leak into a child", i)
		}
	}
}

func TestReceiveSeesTheEnd(t *testing.T) {
	a, b := pair(t)
	a.Close()
	if _, err := receive(b, new(request)); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		t.Errorf("receive on a closed connection: %v", err)
	}
}

func TestReceiveRefusesNonsense(t *testing.T) {
	a, b := pair(t)
	before := openFiles(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.WriteMsgUnix([]byte("{not json"), unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := receive(b, new(request)); err == nil {
		t.Error("nonsense was taken")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after: what came with nonsense leaked", before, after)
	}
	if err := send(a, request{Cmdline: strings.Repeat("x", maxMessage)}); err == nil {
		t.Error("a message over the limit was sent")
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
