package doctor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// healthy is a machine on which every probe finds what it wants.
func healthy() host {
	return host{
		kvm:        func() (kvmFacts, error) { return kvmFacts{maxVCPUs: 288}, nil },
		syscallCPL: func(context.Context, Options) (int, error) { return 0, nil },
		createTime: func() (createFacts, error) { return createFacts{vm: time.Millisecond}, nil },
		reflink:    func(dir string) (reflinkFacts, error) { return reflinkFacts{dir: dir, freeBytes: 20e9}, nil },
		openFiles:  func() (uint64, error) { return 1 << 20, nil },
		elf:        func(string) error { return nil },
		ext4:       func(string) error { return nil },
		memory:     func() (memoryFacts, error) { return memoryFacts{total: 16 << 30, available: 8 << 30}, nil },
		cgroup: func() (cgroupFacts, error) {
			return cgroupFacts{mount: "/sys/fs/cgroup", controllers: []string{"cpu", "memory", "pids"}}, nil
		},
		uffd:   func() (uffdFacts, error) { return uffdFacts{via: "the system call", missingShmem: true}, nil },
		btf:    func() error { return nil },
		tcx:    func() error { return nil },
		tun:    func() error { return nil },
		nft:    func() error { return nil },
		kernel: func() (Kernel, error) { return Kernel{Release: "6.12.1", HZ: 250}, nil },
	}
}

// TestReadiness breaks one thing of a healthy machine at a time.
func TestReadiness(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name   string
		damage func(*host)
		ready  bool
		// bad is the only check that is not ok, with its status; empty where all are.
		bad    string
		status Status
	}{
		{"nothing", func(*host) {}, true, "", ""},
		{"kvm", func(h *host) { h.kvm = func() (kvmFacts, error) { return kvmFacts{}, broken } }, false, "kvm", Fail},
		{"stock semantics", func(h *host) { h.syscallCPL = func(context.Context, Options) (int, error) { return 3, nil } }, false, "stock_guests", Fail},
		{"create time", func(h *host) { h.createTime = func() (createFacts, error) { return createFacts{}, broken } }, true, "vm_create_time", Warn},
		{"reflink", func(h *host) {
			h.reflink = func(string) (reflinkFacts, error) { return reflinkFacts{cloneErr: unix.EXDEV}, nil }
		}, false, "reflink", Fail},
		{"files", func(h *host) { h.openFiles = func() (uint64, error) { return 64, nil } }, false, "open_files", Fail},
		{"kernel asset", func(h *host) { h.elf = func(string) error { return broken } }, false, "guest_kernel", Fail},
		{"rootfs asset", func(h *host) { h.ext4 = func(string) error { return broken } }, false, "guest_rootfs", Fail},
		{"memory", func(h *host) { h.memory = func() (memoryFacts, error) { return memoryFacts{}, broken } }, true, "memory", Warn},
		{"cgroup", func(h *host) { h.cgroup = func() (cgroupFacts, error) { return cgroupFacts{}, nil } }, true, "cgroup_v2", Warn},
		{"userfaultfd", func(h *host) { h.uffd = func() (uffdFacts, error) { return uffdFacts{}, broken } }, true, "userfaultfd", Warn},
		{"btf", func(h *host) { h.btf = func() error { return broken } }, true, "btf", Warn},
		{"tcx", func(h *host) { h.tcx = func() error { return broken } }, true, "tcx", Warn},
		{"tun", func(h *host) { h.tun = func() error { return broken } }, true, "tun", Warn},
		{"nftables", func(h *host) { h.nft = func() error { return broken } }, true, "nftables", Warn},
		{"kernel", func(h *host) { h.kernel = func() (Kernel, error) { return Kernel{}, broken } }, true, "kernel", Warn},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := healthy()
			tt.damage(&h)
			r := run(t.Context(), Options{}.withDefaults(), h)
			if r.Ready != tt.ready {
				t.Errorf("ready is %v, want %v", r.Ready, tt.ready)
			}
			for _, c := range r.Checks {
				want := OK
				if c.Name == tt.bad {
					want = tt.status
				}
				if c.Status != want {
					t.Errorf("%s is %s (%s), want %s", c.Name, c.Status, c.Found, want)
				}
			}
		})
	}
}

func TestHangingProbeEndsWithinItsLimit(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	h := healthy()
	h.kvm = func() (kvmFacts, error) { <-release; return kvmFacts{}, nil }
	r := run(t.Context(), Options{CheckTimeout: 20 * time.Millisecond}.withDefaults(), h)
	if c := r.Checks[0]; r.Ready || c.Name != "kvm" || c.Status != Fail || c.Found != "no answer within 20ms" {
		t.Errorf("ready %v, %+v", r.Ready, c)
	}
}

func TestVerdictNamesTheLabWhereStockGuestsCannotRun(t *testing.T) {
	h := healthy()
	h.syscallCPL = func(context.Context, Options) (int, error) { return 3, nil }
	h.elf = func(string) error { return errUnset }
	got := run(t.Context(), Options{}.withDefaults(), h).Verdict()
	want := "not ready: stock guests can't run: their kernel can never be entered from user space " +
		"(SYSCALL in a guest arrives at CPL 3 instead of 0); use `cella lab`: it emulates a standard KVM host in which everything runs"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if strings.Contains(got, "\n") {
		t.Error("the verdict is not one line")
	}
}

func TestTextShowsMeaningAndRemedy(t *testing.T) {
	r := Report{Checks: []Check{
		{Name: "kvm", Status: OK, Found: "API version 12"},
		{Name: "tun", Status: Warn, Found: "gone", Means: "no network", Do: "`modprobe tun`"},
	}}
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := "ok    kvm             API version 12\n" +
		"warn  tun             gone\n" +
		"                      → no network\n" +
		"                      → `modprobe tun`\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// TestRealProbesLeaveNothing runs every check on this machine, whatever it can do, and counts files and descriptors.
func TestRealProbesLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	Run(t.Context(), Options{StateDir: dir}) // opens what the runtime keeps, such as its poller
	before := openFDs(t)
	r := Run(t.Context(), Options{StateDir: filepath.Join(dir, "not", "yet")})
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, c := range r.Checks {
		if strings.HasPrefix(c.Found, "no answer") {
			t.Errorf("%s: %s", c.Name, c.Found)
		}
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestAssetsAreReadNotOnlyFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	image := make([]byte, 4096)
	image[1024+0x38], image[1024+0x39] = 0x53, 0xef
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"ext4", probeExt4(write("good.ext4", image)), ""},
		{"not ext4", probeExt4(write("bad.ext4", make([]byte, 4096))), filepath.Join(dir, "bad.ext4") + " is not an ext4 image"},
		{"short image", probeExt4(write("short.ext4", nil)), filepath.Join(dir, "short.ext4") + " is not an ext4 image"},
		{"absent kernel", probeELF(filepath.Join(dir, "vmlinux")), "open " + filepath.Join(dir, "vmlinux") + ": no such file or directory"},
		{"kernel not named", probeELF(""), "no path given"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if tt.err != nil {
				got = tt.err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
