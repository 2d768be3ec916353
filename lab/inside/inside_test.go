package inside

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cella.dev/cella/lab/proto"
)

func write(t *testing.T, name, content string, perm os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), perm); err != nil {
		t.Fatal(err)
	}
}

func TestIdentifyTellsDisksApart(t *testing.T) {
	dir := t.TempDir()
	image := func(name string, offset int, magic string) string {
		head := make([]byte, 4096)
		copy(head[offset:], magic)
		file := filepath.Join(dir, name)
		write(t, file, string(head), 0o644)
		return file
	}
	root, state := image("root", 0x438, "\x53\xef"), image("state", 0, "XFSB")
	in, junk := image("in", 257, "ustar\x0000"), image("junk", 0, "GIF89a")
	tests := []struct {
		name    string
		devices []string
		want    disks // zero: an error
	}{
		{"in any order", []string{in, state, root}, disks{root, state, in}},
		{"nothing to copy in", []string{root, state}, disks{root, state, ""}},
		{"no state disk", []string{root, in}, disks{}},
		{"something else", []string{root, state, junk}, disks{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := identify(tt.devices)
			if (err == nil) != (tt.want != disks{}) || err == nil && got != tt.want {
				t.Errorf("identify = %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestPackThenUnpack(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "one"), "1", 0o640)
	write(t, filepath.Join(dir, "d/two"), "\x00\xff", 0o755)
	if err := os.Symlink("two", filepath.Join(dir, "d/link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	paths := []string{filepath.Join(dir, "one"), filepath.Join(dir, "missing"), filepath.Join(dir, "d")}
	if err := pack(&b, paths); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "disk")
	write(t, disk, b.String()+strings.Repeat("\x00", 4096), 0o644) // A disk is longer than what is on it.
	root := t.TempDir()
	if err := unpack(disk, root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"0": "1", "2/two": "\x00\xff", "2/link": "\x00\xff"} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
	}
	if st, err := os.Stat(filepath.Join(root, "0")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode is %v, %v; want 0640", st.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(root, "1")); !os.IsNotExist(err) {
		t.Errorf("what was missing is there: %v", err)
	}
}

func TestDelegateControllers(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cgroup.controllers"), "pids\n", 0o644)
	write(t, filepath.Join(dir, "cgroup.subtree_control"), "", 0o644)
	if err := delegateControllers(dir); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if string(got) != "+pids" {
		t.Errorf("subtree_control got %q, want %q", got, "+pids")
	}
}

// host is the machine outside, as far as the protocol goes.
func host(t *testing.T) (lab, outside *proto.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return proto.NewConn(a), proto.NewConn(b)
}

func TestProgramThatIsNotThere(t *testing.T) {
	lab, outside := host(t)
	result := make(chan proto.ExitStatus, 1)
	go func() {
		st, err := run(lab, proto.StartRequest{Args: []string{"no-such-program"}, Env: []string{"PATH=/nowhere"}})
		if err != nil {
			t.Error(err)
		}
		result <- st
	}()
	typ, payload, err := outside.Receive()
	if err != nil || typ != proto.Stderr || !strings.Contains(string(payload), "no-such-program") {
		t.Errorf("the host received %d %q, %v; want the reason on stderr", typ, payload, err)
	}
	if st := <-result; st.Code != 127 {
		t.Errorf("exit code is %d, want 127", st.Code)
	}
}

func TestServeRejectsWhatItDoesNotKnow(t *testing.T) {
	for name, send := range map[string]func(*proto.Conn) error{
		"a frame that is not Start": func(c *proto.Conn) error { return c.Send(proto.Stdin, nil) },
		"not JSON":                  func(c *proto.Conn) error { return c.Send(proto.Start, []byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			lab, outside := host(t)
			failed := make(chan error, 1)
			go func() { failed <- serve(lab) }()
			if typ, _, err := outside.Receive(); typ != proto.Hello || err != nil {
				t.Fatalf("first frame is %d, %v; want Hello", typ, err)
			}
			if err := send(outside); err != nil {
				t.Fatal(err)
			}
			if err := <-failed; err == nil || err == io.EOF {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// The host reads these names.
func TestExitStatusOnTheWire(t *testing.T) {
	b, err := json.Marshal(proto.ExitStatus{Code: 3, BootNano: 1, RunNano: 2})
	if want := `{"code":3,"bootNano":1,"runNano":2}`; err != nil || string(b) != want {
		t.Errorf("exit status is %s, %v; want %s", b, err, want)
	}
}
