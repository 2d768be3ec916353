package main

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cella.dev/cella/lab"
)

// parse reads a command line as `lab run` does, without running anything.
func parse(t *testing.T, args ...string) (lab.Options, error) {
	t.Helper()
	var f labFlags
	var o lab.Options
	cmd := &cobra.Command{Use: "run", SilenceErrors: true, SilenceUsage: true, RunE: func(_ *cobra.Command, args []string) error {
		var err error
		o, err = f.options(args)
		return err
	}}
	f.register(cmd, "")
	cmd.SetArgs(args)
	err := cmd.Execute()
	return o, err
}

func TestLabFlags(t *testing.T) {
	got, err := parse(t, "--in", "a:/x", "--in", "b", "--out", "/r:r", "--forward", "80:3000", "--env", "K=V=W",
		"--memory", "512m", "--clock", "real", "--cpus", "2", "--internet", "--", "sh", "-c", "exit 3")
	want := lab.Options{
		Command: []string{"sh", "-c", "exit 3"}, Env: []string{"K=V=W"}, Clock: lab.Real, MemoryMiB: 512, CPUs: 2, Internet: true,
		Out: []lab.Copy{{From: "/r", To: "r"}}, Forward: []lab.Forward{{Host: 80, Lab: 3000}},
		In: []lab.Copy{{From: "a", To: "/x"}, {From: "b", To: "/in/b"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("options are\n%+v, %v; want\n%+v", got, err, want)
	}
	// All mistakes are told at once.
	_, err = parse(t, "--in", "a:x", "--out", "r", "--forward", "http", "--memory", "lots", "--", "true")
	for _, want := range []string{`in "a:x"`, `out "r"`, `forward "http"`, `memory "lots"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func TestParseMiB(t *testing.T) {
	for in, want := range map[string]int{"6G": 6144, "512M": 512, "1g": 1024, "256M": 256, "255M": 0, "6": 0, "-1G": 0, "": 0, "G": 0} {
		if got, err := parseMiB(in); got != want || (err == nil) != (want > 0) {
			t.Errorf("parseMiB(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		err    error
		code   int
		stderr string
	}{
		{errors.New("no such file"), 1, "cella: no such file\n"},
		{withExit(lab.ErrTimeout, exitTimeout), 124, "cella: the lab's time limit is over\n"},
		{exitError(143), 143, ""},
		{fmt.Errorf("wrapped: %w", exitError(3)), 3, ""},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		printError(&b, tt.err)
		if got := exitCode(tt.err); got != tt.code || b.String() != tt.stderr {
			t.Errorf("%v exits with %d and says %q, want %d and %q", tt.err, got, b.String(), tt.code, tt.stderr)
		}
	}
	if !errors.Is(withExit(lab.ErrTimeout, 1), lab.ErrTimeout) {
		t.Error("withExit hides the error")
	}
}
