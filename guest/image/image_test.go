package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// bzImage makes a boot image of one setup sector whose payload is data packed with zstd.
func bzImage(t *testing.T, data []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	payload := binary.LittleEndian.AppendUint32(enc.EncodeAll(data, nil), uint32(len(data)))
	const gap = 16 // between the protected-mode code's start and the payload
	b := make([]byte, 2*sector+gap)
	b[offSetupSects] = 1
	copy(b[offHeaderMagic:], "HdrS")
	binary.LittleEndian.PutUint32(b[offPayloadOffset:], gap)
	binary.LittleEndian.PutUint32(b[offPayloadLength:], uint32(len(payload)))
	return append(b, payload...)
}

func TestExtractELF(t *testing.T) {
	elf := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel"), 1000)...)
	got, err := ExtractELF(bzImage(t, elf))
	if err != nil || !bytes.Equal(got, elf) {
		t.Fatalf("ExtractELF gave %d bytes, %v; want the %d that went in", len(got), err, len(elf))
	}
	change := func(f func([]byte) []byte) []byte { return f(bzImage(t, elf)) }
	bad := map[string][]byte{
		"empty":              nil,
		"no magic":           change(func(b []byte) []byte { b[offHeaderMagic] = 'X'; return b }),
		"cut off":            change(func(b []byte) []byte { return b[:len(b)-1] }),
		"offset beyond file": change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[offPayloadOffset:], 1<<31); return b }),
		"length 0":           change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[offPayloadLength:], 0); return b }),
		"not zstd":           change(func(b []byte) []byte { b[2*sector+16] = 0; return b }),
		"claims 4 GiB":       change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[len(b)-4:], 1<<32-1); return b }),
		"claims too much":    change(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[len(b)-4:], 1<<20); return b }),
		"not an ELF":         bzImage(t, []byte("something else altogether")),
	}
	for name, image := range bad {
		t.Run(name, func(t *testing.T) {
			if got, err := ExtractELF(image); err == nil {
				t.Errorf("gave %d bytes, want an error", len(got))
			}
		})
	}
}

func TestBuildInitrd(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"agent": "AGENT", "order": "00-a.ko\n01-b.ko\n", "00-a.ko": "A", "01-b.ko": "B", "stray.ko": "S",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var one, two bytes.Buffer
	for _, b := range []*bytes.Buffer{&one, &two} {
		if err := BuildInitrd(b, filepath.Join(dir, "agent"), dir); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same input gave different archives")
	}
	cmd := exec.Command("cpio", "--quiet", "-tv", "--numeric-uid-gid")
	cmd.Stdin = &one
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		got = append(got, f[0]+" "+f[len(f)-1])
	}
	want := []string{
		"drwxr-xr-x dev", "drwxr-xr-x proc", "drwxr-xr-x sys", "drwxr-xr-x run", "drwxr-xr-x tmp", "drwxr-xr-x root",
		"drwxr-xr-x mnt", "drwxr-xr-x modules", "crw------- dev/console", "-rwxr-xr-x init",
		"-rw-r--r-- modules/00-a.ko", "-rw-r--r-- modules/01-b.ko", "-rw-r--r-- modules/order",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the archive holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFindSaysWhatToRun(t *testing.T) {
	dir := t.TempDir()
	_, err := Find(dir)
	if err == nil || !strings.HasSuffix(err.Error(), "is missing: run `cella setup` (or `make setup`)") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error is %q, want one line that says what to run", err)
	}
	for _, name := range []string{"kernel/vmlinux", "kernel/vmlinuz", "modules/order", "base/rootfs.ext4"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Find(dir)
	want := Assets{dir + "/kernel/vmlinux", dir + "/kernel/vmlinuz", dir + "/modules", dir + "/base/rootfs.ext4"}
	if err != nil || got != want {
		t.Errorf("Find = %+v, %v; want %+v", got, err, want)
	}
}
