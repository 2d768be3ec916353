package lab

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestWriteIn(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "d/sub"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "d/sub/f"), []byte("\x00\xffbinary"), 0o751))
	must(os.Symlink("sub/f", filepath.Join(dir, "d/link")))
	must(os.Symlink("d", filepath.Join(dir, "alias")))
	var b bytes.Buffer
	must(writeIn(&b, []Copy{{filepath.Join(dir, "d/sub/f"), "/in/one"}, {filepath.Join(dir, "alias"), "/opt/d"}}))
	type entry struct {
		name, link, content string
		mode                int64
	}
	var got []entry
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(err)
		content, err := io.ReadAll(r)
		must(err)
		got = append(got, entry{h.Name, h.Linkname, string(content), h.Mode})
	}
	want := []entry{
		{"in/one", "", "\x00\xffbinary", 0o751},
		{"opt/d", "", "", 0o755},
		{"opt/d/link", "sub/f", "", 0o777},
		{"opt/d/sub", "", "", 0o755},
		{"opt/d/sub/f", "", "\x00\xffbinary", 0o751},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the archive holds\n%+v, want\n%+v", got, want)
	}
	if err := writeIn(io.Discard, []Copy{{filepath.Join(dir, "none"), "/in/none"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("copying what is not there: %v", err)
	}
}

// archive makes what the lab would send.
func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Uname // Abused as the content: headers from the lab carry no names.
		h.Uname, h.Size = "", 0
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestReadOut(t *testing.T) {
	dir := t.TempDir()
	existing := filepath.Join(dir, "existing")
	if err := os.Mkdir(existing, 0o755); err != nil {
		t.Fatal(err)
	}
	copies := []Copy{
		{"/var/r.json", filepath.Join(dir, "new/place.json")},
		{"/var/log", filepath.Join(dir, "logs")},
		{"/var/s.json", existing},
	}
	r := archive(t,
		tar.Header{Name: "0", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "result"},
		tar.Header{Name: "1", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "1/a/b", Typeflag: tar.TypeReg, Mode: 0o600, Uname: "log"},
		tar.Header{Name: "1/a/link", Typeflag: tar.TypeSymlink, Linkname: "b"},
		tar.Header{Name: "2", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "second"},
	)
	if err := readOut(r, copies); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"new/place.json": "result", "logs/a/b": "log", "logs/a/link": "log", "existing/s.json": "second",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
	}
}

// The lab runs what is being tested, so its answer may not write anywhere but where it was asked to.
func TestReadOutStaysInside(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]tar.Header{
		"dot dot":         {{Name: "0/../outside/f", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"}},
		"through a link":  {{Name: "0/l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "0/l/f", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"}},
		"not asked for":   {{Name: "1/f", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"}},
		"not even a copy": {{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"}},
	}
	for name, headers := range tests {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := readOut(archive(t, headers...), []Copy{{"/d", to}}); err == nil {
				t.Error("no error")
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
				t.Errorf("outside there is %v, %v", left, err)
			}
		})
	}
}
