package boot

import (
	"bytes"
	"net/netip"
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
		{"cella.net=169.254.0.21/30,169.254.0.22", options{root: "/dev/vda", flags: unix.MS_NOATIME, hostname: "cella",
			net: network{netip.MustParsePrefix("169.254.0.21/30"), netip.MustParseAddr("169.254.0.22")}}},
		{"cella.net=169.254.0.21,169.254.0.22", options{root: "/dev/vda", flags: unix.MS_NOATIME, hostname: "cella"}},
		{"cella.net=fe80::1/64,fe80::2", options{root: "/dev/vda", flags: unix.MS_NOATIME, hostname: "cella"}},
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

func TestDefaultRoute(t *testing.T) {
	want := []byte{36, 0, 0, 0, 24, 0, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0, // header: RTM_NEWROUTE, request, ack, create, replace
		2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, // rtmsg: any destination, main table, by the boot, unicast
		8, 0, 5, 0, 169, 254, 0, 22} // gateway
	if got := defaultRoute(netip.MustParseAddr("169.254.0.22")); !bytes.Equal(got, want) {
		t.Errorf("message %v, want %v", got, want)
	}
}
