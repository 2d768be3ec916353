package cpio

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// The whole archive of one directory, one file and the trailer, byte by byte, as buffer-format.rst describes it.
func TestExactBytes(t *testing.T) {
	var b bytes.Buffer
	c := NewWriter(&b)
	c.Dir("d", 0o755)
	c.File("d/f", 0o644, 3, strings.NewReader("abc"))
	c.Char("c", 0o600, 5, 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	const zero, one = "00000000", "00000001"
	want := "070701" + one + "000041ed" + zero + zero + "00000002" + zero + zero + zero + zero + zero + zero + "00000002" + zero + "d\x00" +
		"070701" + "00000002" + "000081a4" + zero + zero + one + zero + "00000003" + zero + zero + zero + zero + "00000004" + zero + "d/f\x00" + "\x00\x00" + "abc\x00" +
		"070701" + "00000003" + "00002180" + zero + zero + one + zero + zero + zero + zero + "00000005" + one + "00000002" + zero + "c\x00" +
		"070701" + zero + zero + zero + zero + one + zero + zero + zero + zero + zero + zero + "0000000b" + zero + "TRAILER!!!\x00" + "\x00\x00\x00"
	if got := b.String(); got != want {
		t.Errorf("archive is\n%q, want\n%q", got, want)
	}
}

// What the usual program makes of an archive.
func TestCpioReadsIt(t *testing.T) {
	var b bytes.Buffer
	c := NewWriter(&b)
	c.Dir("dev", 0o755)
	c.Char("dev/console", 0o600, 5, 1)
	c.File("/init", 0o755, 5, strings.NewReader("hello"))
	c.Symlink("bin", "usr/bin")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cpio", "--quiet", "-t") // One of set-up's packages.
	cmd.Stdin = &b
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(out), "dev\ndev/console\ninit\nbin\n"; got != want {
		t.Errorf("listing is %q, want %q", got, want)
	}
}

func TestErrorsStick(t *testing.T) {
	tests := []struct {
		name string
		add  func(*Writer) error
		want error
	}{
		{"file shorter than announced", func(c *Writer) error { return c.File("f", 0o644, 4, strings.NewReader("abc")) }, io.EOF},
		{"writer fails", func(c *Writer) error { c.w = failing{}; return c.Dir("d", 0o755) }, io.ErrShortWrite},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := NewWriter(io.Discard)
			if err := tt.add(c); !errors.Is(err, tt.want) {
				t.Errorf("error is %v, want %v", err, tt.want)
			}
			if err := c.Close(); !errors.Is(err, tt.want) {
				t.Errorf("Close after an error gives %v, want %v", err, tt.want)
			}
		})
	}
	if err := NewWriter(io.Discard).File("big", 0o644, 1<<32, nil); err == nil {
		t.Error("a file of 4 GiB was accepted; the size has 32 bits")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
