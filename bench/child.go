package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Child is a server that the benchmark started for itself.
type Child struct {
	URL    string `json:"url"`
	APIKey string `json:"apiKey"`
	cmd    *exec.Cmd
	exited chan error
}

// StartChild runs a command that serves and waits for the line {"url":…,"apiKey":…} on its standard
// output, for at most the timeout. What it prints otherwise goes to log.
func StartChild(ctx context.Context, command []string, timeout time.Duration, log io.Writer) (*Child, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = log
	// A process group of its own: a Ctrl-C on the terminal is the benchmark's to handle, which still has
	// sandboxes to kill through this server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A pipe of our own, since Wait closes that of StdoutPipe under its reader.
	stdout, childStdout, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for %s: %w", command[0], err)
	}
	cmd.Stdout = childStdout
	err = cmd.Start()
	childStdout.Close()
	if err != nil {
		stdout.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	c := &Child{cmd: cmd, exited: make(chan error, 1)}
	go func() { c.exited <- cmd.Wait() }()
	ready := make(chan Child, 1)
	go announce(stdout, ready, log)
	select {
	case r := <-ready:
		c.URL, c.APIKey = r.URL, r.APIKey
		return c, nil
	case err := <-c.exited:
		c.exited <- err
		return nil, fmt.Errorf("%s ended before it served: %w", command[0], errors.Join(err, c.Stop()))
	case <-time.After(timeout):
		return nil, errors.Join(fmt.Errorf("%s did not serve within %v; run it by hand to see why", command[0], timeout), c.Stop())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), c.Stop())
	}
}

// announce hands over the first line that has a URL and copies everything else to log.
func announce(stdout io.ReadCloser, ready chan<- Child, log io.Writer) {
	defer stdout.Close()
	announced := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var c Child
		if !announced && json.Unmarshal(lines.Bytes(), &c) == nil && c.URL != "" {
			announced = true
			ready <- c
			continue
		}
		fmt.Fprintln(log, lines.Text())
	}
}

// PID is the server's process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// stopTimeout is how long a server may take to end its sandboxes.
const stopTimeout = 30 * time.Second

// Stop asks the server to end, and kills it if it does not.
func (c *Child) Stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the server: %w", err)
	}
	select {
	case <-c.exited:
		return nil
	case <-time.After(stopTimeout):
	}
	err := c.cmd.Process.Kill()
	<-c.exited
	return errors.Join(fmt.Errorf("the server did not end within %v of SIGTERM and was killed", stopTimeout), err)
}
