package kmod

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func tree(t *testing.T) *Tree {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"modules.dep": "kernel/a.ko:\nkernel/b-two.ko: kernel/a.ko\nkernel/c.ko: kernel/b-two.ko kernel/a.ko\n" +
			"kernel/d.ko: kernel/a.ko\n",
		"modules.builtin": "kernel/fs/ext4/ext4.ko\nkernel/lib/crc-16.ko\n",
		"kernel/a.ko":     "A", "kernel/b-two.ko": "B", "kernel/c.ko": "C", "kernel/d.ko": "D",
	}
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestLoadOrder(t *testing.T) {
	tests := []struct {
		name  string
		names []string
		want  []string
	}{
		{"what a module needs comes first", []string{"c"}, []string{"kernel/a.ko", "kernel/b-two.ko", "kernel/c.ko"}},
		{"shared needs come once", []string{"d", "c"}, []string{"kernel/a.ko", "kernel/d.ko", "kernel/b-two.ko", "kernel/c.ko"}},
		{"- and _ are the same", []string{"b_two"}, []string{"kernel/a.ko", "kernel/b-two.ko"}},
		{"built in", []string{"ext4", "crc_16"}, nil},
	}
	tr := tree(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tr.LoadOrder(tt.names...)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("LoadOrder = %v, %v; want %v", got, err, tt.want)
			}
		})
	}
	if _, err := tr.LoadOrder("nosuch"); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("error for an unknown module is %v, want one that names it", err)
	}
}

func TestExtractNumbersFilesInLoadOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	if err := tree(t).Extract(dir, "c", "d"); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"order":    "00-a.ko\n01-b_two.ko\n02-c.ko\n03-d.ko\n",
		"00-a.ko":  "A",
		"03-d.ko":  "D",
		"02-c.ko":  "C",
		"nonesuch": "",
	}
	for name, content := range want {
		got, _ := os.ReadFile(filepath.Join(dir, name))
		if string(got) != content {
			t.Errorf("%s holds %q, want %q", name, got, content)
		}
	}
}

func TestUnsign(t *testing.T) {
	signature := bytes.Repeat([]byte{7}, 20)
	info := binary.BigEndian.AppendUint32(make([]byte, 8), uint32(len(signature)))
	signed := bytes.Join([][]byte{[]byte("MODULE"), signature, info, signatureMagic}, nil)
	lying := bytes.Join([][]byte{[]byte("MODULE"), binary.BigEndian.AppendUint32(make([]byte, 8), 1<<31), signatureMagic}, nil)
	tests := []struct {
		name     string
		in, want []byte
	}{
		{"signed", signed, []byte("MODULE")},
		{"not signed", []byte("MODULE"), []byte("MODULE")},
		{"only the magic", signatureMagic, signatureMagic},
		{"a signature longer than the file", lying, lying},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := unsign(tt.in); !bytes.Equal(got, tt.want) {
				t.Errorf("unsign = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHideFtraceSitesKeepsEveryOffset(t *testing.T) {
	in := []byte("\x00.rela__mcount_loc\x00.text\x00")
	if got, want := string(hideFtraceSites(in)), "\x00.rela__mcount_off\x00.text\x00"; got != want {
		t.Errorf("section names are %q, want %q", got, want)
	}
}
