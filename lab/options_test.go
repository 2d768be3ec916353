package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseIn(t *testing.T) {
	tests := []struct {
		in   string
		want Copy // zero: an error
	}{
		{"bin/x.test", Copy{"bin/x.test", "/in/x.test"}},
		{"/tmp/dir/", Copy{"/tmp/dir/", "/in/dir"}},
		{"f:/opt/../etc/f", Copy{"f", "/etc/f"}},
		{"f:relative", Copy{}},
		{"f:/", Copy{}},
		{":/x", Copy{}},
	}
	for _, tt := range tests {
		got, err := ParseIn(tt.in)
		if got != tt.want || (err == nil) != (tt.want != Copy{}) {
			t.Errorf("ParseIn(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestParseOut(t *testing.T) {
	tests := []struct {
		in   string
		want Copy
	}{
		{"/tmp/r.json:out/r.json", Copy{"/tmp/r.json", "out/r.json"}},
		{"/tmp/r.json", Copy{}},
		{"r.json:x", Copy{}},
		{"/tmp/x:", Copy{}},
	}
	for _, tt := range tests {
		got, err := ParseOut(tt.in)
		if got != tt.want || (err == nil) != (tt.want != Copy{}) {
			t.Errorf("ParseOut(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestParseForward(t *testing.T) {
	tests := []struct {
		in   string
		want Forward
	}{
		{"3000", Forward{3000, 3000}},
		{"8080:3000", Forward{8080, 3000}},
		{"0:3000", Forward{}},
		{"3000:65536", Forward{}},
		{"3000:", Forward{}},
		{"http", Forward{}},
	}
	for _, tt := range tests {
		got, err := ParseForward(tt.in)
		if got != tt.want || (err == nil) != (tt.want != Forward{}) {
			t.Errorf("ParseForward(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestDefaults(t *testing.T) {
	o := Options{Command: []string{"true"}}
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	if o.Clock != Instruction || o.MemoryMiB != 6144 || o.CPUs != 1 || o.Timeout != 10*time.Minute {
		t.Errorf("defaults are %+v", o)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := l.Addr().(*net.TCPAddr).Port
	bad := map[string]Options{
		"no command":        {},
		"unknown clock":     {Command: []string{"true"}, Clock: "sundial"},
		"name without =":    {Command: []string{"true"}, Env: []string{"PATH"}},
		"env without name":  {Command: []string{"true"}, Env: []string{"=x"}},
		"port already used": {Command: []string{"true"}, Forward: []Forward{{taken, 80}}},
	}
	for name, o := range bad {
		if err := o.defaults(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	l.Close()
	forwarding := Options{Command: []string{"true"}, Forward: []Forward{{taken, 80}}}
	if err := forwarding.defaults(); err != nil || forwarding.Clock != Real {
		t.Errorf("with a port that is free again: %v, clock %q; want none, %q", err, forwarding.Clock, Real)
	}
}

func TestArgs(t *testing.T) {
	o := Options{Command: []string{"true"}, MemoryMiB: 512, CPUs: 2, Clock: Instruction, Forward: []Forward{{8080, 3000}}}
	args := strings.Join(o.args(Images{Vmlinux: "/k"}, []disk{{"/a,b", 1024}, {"/c", 2048}}), " ")
	for _, want := range []string{
		"-kernel /k", "-smp 2", "-m 512M,slots=2,", "-icount shift=1,sleep=off",
		"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:8080-:3000",
		"id=disk0,mem-path=/a,,b,size=1024,share=off", "id=disk1,mem-path=/c,size=2048,share=off",
		"rdinit=/cella-lab-init CELLA_LAB_DISKS=2",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("QEMU's arguments lack %q: %s", want, args)
		}
	}
	o.Clock, o.Internet = Real, true
	args = strings.Join(o.args(Images{}, nil), " ")
	for _, unwanted := range []string{"-icount", "restrict"} {
		if strings.Contains(args, unwanted) {
			t.Errorf("QEMU's arguments have %q: %s", unwanted, args)
		}
	}
}

func TestWithConsole(t *testing.T) {
	var long strings.Builder
	for i := range 100 {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	panicked := long.String() + "Kernel panic - not syncing: sysrq\n" + strings.Repeat("register dump\n", 100)
	tests := []struct {
		name, console, first, last string
		lines                      int
	}{
		{"the last lines", long.String(), "line 70", "line 99", 30},
		{"from before the panic", panicked, "line 95", "register dump", 30},
		{"short", "one\ntwo\n", "one", "two", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := withConsole(ErrTimeout, []byte(tt.console))
			if !errors.Is(err, ErrTimeout) {
				t.Errorf("%v is no longer the error it was", err)
			}
			lines := strings.Split(err.Error(), "\n  ")[1:]
			if len(lines) != tt.lines || lines[0] != tt.first || lines[len(lines)-1] != tt.last {
				t.Errorf("%d lines from %q to %q, want %d from %q to %q", len(lines), lines[0], lines[len(lines)-1], tt.lines, tt.first, tt.last)
			}
		})
	}
}

func TestFindSaysWhatToRun(t *testing.T) {
	_, err := Find(t.TempDir())
	if err == nil || !strings.HasSuffix(err.Error(), "is missing: run `cella setup` (or `make setup`)") {
		t.Errorf("error is %v, want one that says what to run", err)
	}
}

func TestDescribeChangesWithContent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	describeNow := func(content string, when int64) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Unix(when, 0), time.Unix(when, 0)); err != nil {
			t.Fatal(err)
		}
		d, err := describe(map[string]string{"assets/f": file})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := describeNow("a", 1)
	if again := describeNow("a", 1); again != first {
		t.Errorf("the same file is described as %q and %q", first, again)
	}
	if describeNow("ab", 1) == first || describeNow("a", 2) == first {
		t.Error("a changed file has the same description")
	}
}
