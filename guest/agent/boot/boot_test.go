package boot

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseCmdline(t *testing.T) {
	for _, tc := range []struct {
		line string
		want options
	}{
		{"console=ttyS0 quiet\n", options{root: "/dev/vda", flags: unix.MS_NOATIME, hostname: "cella"}},
		{"cella.root=/dev/vdb cella.hostname=box", options{root: "/dev/vdb", flags: unix.MS_NOATIME, hostname: "box"}},
		{"cella.rootflags=ro,noload,discard", options{root: "/dev/vda", flags: unix.MS_RDONLY, data: "noload,discard", hostname: "cella"}},
		{"cella.rootflags=", options{root: "/dev/vda", hostname: "cella"}},
	} {
		if got := parseCmdline(tc.line); got != tc.want {
			t.Errorf("parseCmdline(%q) = %+v, want %+v", tc.line, got, tc.want)
		}
	}
}

func TestNoModulesIsFine(t *testing.T) {
	if err := loadModules(t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestWaitForSaysWhatIsMissing(t *testing.T) {
	if err := waitFor("/dev/null", time.Second); err != nil {
		t.Error(err)
	}
	err := waitFor(filepath.Join(t.TempDir(), "vda"), time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "virtio_blk") {
		t.Errorf("err = %v", err)
	}
}
