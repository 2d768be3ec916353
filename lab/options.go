package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cella.dev/cella/lab/proto"
)

// Clock is what time is inside the lab.
type Clock string

// The lab's clocks.
const (
	// Instruction counts executed instructions, 2 ns each, and skips idle time: figures repeat to 0.1 % on
	// any machine, however loaded. A client outside sees time jump, so it is for batch runs.
	Instruction Clock = "instruction"
	// Real is the machine's own time.
	Real Clock = "real"
)

// Options say what to run in a lab, and how.
type Options struct {
	// Command is the program and its arguments. The PATH is that of a Debian root shell.
	Command []string
	// Env is added to the lab's own environment, as NAME=VALUE.
	Env []string
	// Stdin, if set, is what the command reads; otherwise it reads /dev/null.
	Stdin io.Reader
	// Stdout and Stderr take the command's output as it comes; nil discards it.
	Stdout, Stderr io.Writer
	// Terminal gives the command a terminal of this size, whose output is all Stdout.
	Terminal *proto.Size
	// Resize brings the terminal's later sizes; it is only read with Terminal set.
	Resize <-chan proto.Size
	// In are copied into the lab before the command starts, Out out of it after it has ended, whatever its exit
	// status. A missing Out file is an error only if the command succeeded.
	In, Out []Copy
	// Forward makes ports of the lab reachable on 127.0.0.1.
	Forward []Forward
	// Internet lets the lab open connections to outside. Without it there are only the forwarded ports.
	Internet bool
	// Clock is Instruction if empty, or Real if ports are forwarded.
	Clock Clock
	// MemoryMiB is the lab's memory, 6,144 if 0. It is taken from the machine only as it is used.
	MemoryMiB int
	// CPUs is the number of emulated CPUs, 1 if 0. They share one core of the machine.
	CPUs int
	// Timeout bounds the whole run in real time, 10 minutes if 0.
	Timeout time.Duration
	// CacheDir holds the lab's images; set-up's default if empty.
	CacheDir string
	// BinDir holds the binaries cella and cella-agent, which are put into the lab; the running program's
	// directory if empty.
	BinDir string
	// Console, if set, takes the kernel console's whole text at the end of the run.
	Console io.Writer
	// Ready, if set, is called when the command is about to start.
	Ready func()
}

// Forward makes port Lab of the lab reachable as 127.0.0.1:Host.
type Forward struct{ Host, Lab int }

// ParseForward reads HOST:LAB, or one number for both.
func ParseForward(s string) (Forward, error) {
	host, lab, ok := strings.Cut(s, ":")
	if !ok {
		lab = host
	}
	h, err1 := strconv.ParseUint(host, 10, 16)
	l, err2 := strconv.ParseUint(lab, 10, 16)
	if err1 != nil || err2 != nil || h == 0 || l == 0 {
		return Forward{}, fmt.Errorf("forward %q: want HOSTPORT:LABPORT, each 1 to 65535", s)
	}
	return Forward{Host: int(h), Lab: int(l)}, nil
}

// ParseIn reads HOSTPATH[:LABPATH]. Without LABPATH a copy lies in /in.
func ParseIn(s string) (Copy, error) {
	from, to, ok := strings.Cut(s, ":")
	if !ok {
		abs, err := filepath.Abs(from)
		if err != nil {
			return Copy{}, err
		}
		to = path.Join("/in", filepath.Base(abs))
	}
	if from == "" || !path.IsAbs(to) || path.Clean(to) == "/" {
		return Copy{}, fmt.Errorf("in %q: want HOSTPATH[:LABPATH] with an absolute LABPATH", s)
	}
	return Copy{From: from, To: path.Clean(to)}, nil
}

// ParseOut reads LABPATH:HOSTPATH.
func ParseOut(s string) (Copy, error) {
	from, to, ok := strings.Cut(s, ":")
	if !ok || !path.IsAbs(from) || to == "" {
		return Copy{}, fmt.Errorf("out %q: want LABPATH:HOSTPATH with an absolute LABPATH", s)
	}
	return Copy{From: path.Clean(from), To: to}, nil
}

// Result tells how a command ended. Durations are on the lab's clock.
type Result struct {
	// ExitCode is the command's, or 128 + the number of the signal that ended it.
	ExitCode int
	// Boot is how long the lab had been up when the command started, Run how long the command took.
	Boot, Run time.Duration
}

// ErrTimeout is returned when the command had not ended in time.
var ErrTimeout = errors.New("the lab's time limit is over")

func (o *Options) defaults() error {
	if len(o.Command) == 0 {
		return errors.New("lab: no command to run")
	}
	if o.Clock == "" {
		o.Clock = Instruction
		if len(o.Forward) > 0 {
			o.Clock = Real
		}
	}
	if o.Clock != Instruction && o.Clock != Real {
		return fmt.Errorf("lab: clock %q: want %s or %s", o.Clock, Instruction, Real)
	}
	for _, kv := range o.Env {
		if i := strings.IndexByte(kv, '='); i <= 0 {
			return fmt.Errorf("lab: environment %q: want NAME=VALUE", kv)
		}
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 6144
	}
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return o.portsFree()
}

// portsFree finds out about taken ports before a lab is booted for nothing.
func (o *Options) portsFree() error {
	for _, f := range o.Forward {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", f.Host))
		if err != nil {
			return fmt.Errorf("lab: forward port %d: %w", f.Host, err)
		}
		l.Close()
	}
	return nil
}
