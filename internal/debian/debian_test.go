package debian

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestSources(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		file := filepath.Join(root, "etc/apt", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sources.list", `
# deb http://commented.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://one-line.test/debian bookworm main contrib # why
`)
	write("sources.list.d/other.list", "deb https://packages.test/apt cloud main\n")
	write("sources.list.d/debian.sources", `Types: deb deb-src
# a comment inside
URIs: http://a.test/debian
 http://b.test/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://off.test/debian
Suites: bookworm
Components: main
Enabled: no
`)
	got, err := Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	main := []string{"main"}
	want := []Source{
		{"http://one-line.test/debian", "bookworm", []string{"main", "contrib"}},
		{"https://packages.test/apt", "cloud", main},
		{"http://a.test/debian", "bookworm", main},
		{"http://a.test/debian", "bookworm-updates", main},
		{"http://b.test/debian", "bookworm", main},
		{"http://b.test/debian", "bookworm-updates", main},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("sources are\n%v, want\n%v", got, want)
	}
}

func TestDeb822WithoutColonIsAnError(t *testing.T) {
	if _, err := parseDeb822(strings.NewReader("Types deb\n")); err == nil {
		t.Error("no error")
	}
}

func TestMirror(t *testing.T) {
	main := []string{"main"}
	tests := []struct {
		name    string
		sources []Source
		want    string
	}{
		{"third parties and security come first in the list", []Source{
			{"https://packages.test/apt", "cloud", main},
			{"http://mirror.test/debian-security", "bookworm-security", main},
			{"http://mirror.test/debian", "bookworm-updates", main},
			{"http://mirror.test/debian", "bookworm", main},
		}, "http://mirror.test/debian"},
		{"an installation medium is no mirror", []Source{
			{"cdrom:[Debian]/", "bookworm", main},
			{"https://mirror.test/debian", "trixie", main},
		}, "https://mirror.test/debian"},
		{"main is not among the components", []Source{{"http://mirror.test/debian", "bookworm", []string{"contrib"}}}, ""},
		{"nothing", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Mirror(tt.sources)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("Mirror = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestNewest(t *testing.T) {
	expr := regexp.MustCompile(`^linux-image-6\.12\.[0-9].*-cloud-amd64(-unsigned)?$`)
	names := []string{
		"linux-image-6.1.0-40-cloud-amd64",
		"linux-image-6.12.9+deb12-cloud-amd64",
		"linux-image-6.12.117+deb12-cloud-amd64-unsigned",
		"linux-image-6.12.117+deb12-cloud-amd64-dbg",
		"linux-image-6.12.57+deb12-cloud-amd64",
		"linux-image-6.12.117+deb12-rt-amd64",
		"linux-image-6.13.1+deb12-cloud-amd64",
	}
	if got, want := newest(names, expr), "linux-image-6.12.117+deb12-cloud-amd64-unsigned"; got != want {
		t.Errorf("newest = %q, want %q", got, want)
	}
	if got := newest(names[:1], expr); got != "" {
		t.Errorf("newest of none that match = %q, want none", got)
	}
}

func TestMissing(t *testing.T) {
	installed := "kmod installed\nxfsprogs config-files\nqemu-system-x86 installed\n"
	got := missing([]string{"kmod", "xfsprogs", "mmdebstrap", "qemu-system-x86"}, installed)
	if want := []string{"xfsprogs", "mmdebstrap"}; !reflect.DeepEqual(got, want) {
		t.Errorf("missing = %v, want %v", got, want)
	}
}
