package buildcache

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Build is what a Step's Build function works with.
type Build struct {
	// Dir is where the product is put together.
	Dir    string
	log    *os.File
	report func(string)
}

// Progress tells the user what the build is doing now.
func (b *Build) Progress(format string, args ...any) { b.report(fmt.Sprintf(format, args...)) }

// Run runs a command in b.Dir with low priority; what it prints goes to the step's log. An error carries the
// last lines it printed.
func (b *Build) Run(ctx context.Context, name string, args ...string) error {
	_, err := b.run(ctx, name, args)
	return err
}

// Output is Run for a command whose standard output is wanted.
func (b *Build) Output(ctx context.Context, name string, args ...string) (string, error) {
	return b.run(ctx, name, args)
}

func (b *Build) run(ctx context.Context, name string, args []string) (string, error) {
	fmt.Fprintf(b.log, "+ %s %s\n", name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	// A group of its own, so that a cancelled build takes the helpers of its command with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	var stdout, both bytes.Buffer
	cmd.Stdout = &tee{&stdout, &both}
	cmd.Stderr = &both
	err := cmd.Run()
	b.log.Write(both.Bytes())
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, lastLines(both.String(), 12))
	}
	return stdout.String(), nil
}

type tee struct{ a, b *bytes.Buffer }

func (t *tee) Write(p []byte) (int, error) {
	t.a.Write(p)
	return t.b.Write(p)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
