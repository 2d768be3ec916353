package buildcache

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// Build is what a Step's Build function works with.
type Build struct {
	// Dir is where the product is put together.
	Dir    string
	log    *os.File
	lock   *os.File
	report func(string)
}

// Progress tells the user what the build is doing now.
func (b *Build) Progress(format string, args ...any) { b.report(fmt.Sprintf(format, args...)) }

// Run runs a command in b.Dir; what it prints goes to the step's log as it comes. An error carries the last lines
// of it.
func (b *Build) Run(ctx context.Context, name string, args ...string) error {
	return b.run(ctx, b.log, name, args)
}

// Output is Run for a command whose standard output is wanted; only the rest goes to the log.
func (b *Build) Output(ctx context.Context, name string, args ...string) (string, error) {
	var stdout bytes.Buffer
	err := b.run(ctx, &stdout, name, args)
	return stdout.String(), err
}

func (b *Build) run(ctx context.Context, stdout io.Writer, name string, args []string) error {
	fmt.Fprintf(b.log, "+ %s %s\n", name, strings.Join(args, " "))
	start, err := b.log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = stdout, b.log
	// A group of its own, so that a cancelled build takes the helpers of its command with it. If this process is killed
	// the command is told to end, and holds the lock until it has: nobody builds in the same place meanwhile.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.ExtraFiles = []*os.File{b.lock}
	// The signal is sent when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, lastLines(b.log, start, 12))
	}
	return nil
}

// lastLines is the end of what f holds from offset start on.
func lastLines(f *os.File, start int64, n int) string {
	const enough = 8 << 10
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	text := make([]byte, min(end-start, enough))
	if _, err := f.ReadAt(text, end-int64(len(text))); err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
