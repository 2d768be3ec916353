package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"cella.dev/cella/lab"
	"cella.dev/cella/lab/proto"
)

// exitTimeout is what timeout(1) exits with.
const exitTimeout = 124

func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run commands on an emulated KVM host",
		Long: `The lab is an emulated machine with a standard /dev/kvm, for testing and measuring where the machine's own
cannot run stock guests. In it are cella and cella-agent, node, crun, QEMU, and XFS at /var/lib/cella with the
guest's ingredients in /var/lib/cella/assets. Every run begins with the same disks.`,
	}
	cmd.AddCommand(newLabRunCommand(), newLabShellCommand())
	return cmd
}

// labFlags are what run and shell share.
type labFlags struct {
	in, out, forward, env []string
	memory, clock         string
	consoleFile           string
	o                     lab.Options
}

func (f *labFlags) register(cmd *cobra.Command, clock string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.in, "in", nil, "copy `HOSTPATH[:LABPATH]` into the lab first (default LABPATH: /in/NAME)")
	flags.StringArrayVar(&f.out, "out", nil, "copy `LABPATH:HOSTPATH` out of the lab afterwards")
	flags.StringArrayVar(&f.env, "env", nil, "set `NAME=VALUE` in the command's environment")
	flags.StringArrayVar(&f.forward, "forward", nil, "make a port of the lab reachable on 127.0.0.1, as `HOSTPORT:LABPORT`")
	flags.StringVar(&f.clock, "clock", clock, "the lab's time: `instruction` (repeatable) or real; real if ports are forwarded")
	flags.StringVar(&f.memory, "memory", "6G", "the lab's memory")
	flags.IntVar(&f.o.CPUs, "cpus", 1, "emulated CPUs, which share one core")
	flags.BoolVar(&f.o.Internet, "internet", false, "let the lab open connections to outside")
	flags.StringVar(&f.consoleFile, "console", "", "write the kernel console's text to `FILE`")
}

// options turns the flags into lab.Options; what they say wrongly is an error before anything starts.
func (f *labFlags) options(args []string) (lab.Options, error) {
	o := f.o
	o.Command, o.Env, o.Clock = args, f.env, lab.Clock(f.clock)
	var errs []error
	for _, s := range f.in {
		c, err := lab.ParseIn(s)
		o.In, errs = append(o.In, c), append(errs, err)
	}
	for _, s := range f.out {
		c, err := lab.ParseOut(s)
		o.Out, errs = append(o.Out, c), append(errs, err)
	}
	for _, s := range f.forward {
		p, err := lab.ParseForward(s)
		o.Forward, errs = append(o.Forward, p), append(errs, err)
	}
	var err error
	o.MemoryMiB, err = parseMiB(f.memory)
	return o, errors.Join(append(errs, err)...)
}

// parseMiB reads a size such as 6G or 512M.
func parseMiB(s string) (int, error) {
	unit := 1
	number, ok := strings.CutSuffix(strings.ToUpper(s), "G")
	if ok {
		unit = 1024
	} else {
		number, ok = strings.CutSuffix(number, "M")
	}
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n <= 0 || n*unit < 256 {
		return 0, fmt.Errorf("memory %q: want at least 256M, such as 512M or 6G", s)
	}
	return n * unit, nil
}

func newLabRunCommand() *cobra.Command {
	var f labFlags
	var interactive, verbose bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Boot a lab, run one command in it as root, and end it",
		Long: `Boot a lab, run one command in it as root, and end it.

The command's output and exit status are passed on; a command that was ended by signal N exits with 128+N. When the
time limit is over the exit status is 124, and when the lab itself fails 125; both come with the last lines of the
kernel's console.`,
		Example: `  cella lab run -- cella doctor
  cella lab run --in ./memsnap.test -- /in/memsnap.test -test.v
  cella lab run --timeout 1h --forward 3000:3000 -- cella up --listen 0.0.0.0:3000`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(args)
			if err != nil {
				return err
			}
			o.Stdout, o.Stderr = os.Stdout, os.Stderr
			if interactive {
				o.Stdin = os.Stdin
			}
			if len(o.Forward) > 0 {
				o.Ready = func() { fmt.Fprintln(os.Stderr, "lab: up; forwarded ports answer once the command listens") }
			}
			return runLab(o, f.consoleFile, verbose)
		},
	}
	f.register(cmd, "")
	cmd.Flags().DurationVar(&f.o.Timeout, "timeout", 10*time.Minute, "time limit for everything, in real time")
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false, "pass standard input on to the command")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "end with a line on the time it took")
	return cmd
}

func newLabShellCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "A shell in a new lab",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o, err := f.options([]string{"bash", "-l"})
			if err != nil {
				return err
			}
			o.Timeout = 24 * time.Hour
			return shell(o, f.consoleFile)
		},
	}
	f.register(cmd, string(lab.Real))
	return cmd
}

// shell runs o.Command on this process's terminal.
func shell(o lab.Options, consoleFile string) error {
	in := int(os.Stdin.Fd())
	cols, rows, err := term.GetSize(in)
	if err != nil {
		return errors.New("lab shell needs a terminal; for a script use `cella lab run -i -- bash`")
	}
	o.Terminal = &proto.Size{Rows: uint16(rows), Cols: uint16(cols)}
	o.Stdin, o.Stdout = os.Stdin, os.Stdout
	resize, stop := watchSize(in)
	defer stop()
	o.Resize = resize
	fmt.Fprintln(os.Stderr, "lab: booting, about ten seconds")
	state, err := term.MakeRaw(in)
	if err != nil {
		return fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	defer term.Restore(in, state)
	return runLab(o, consoleFile, false)
}

// watchSize reports the terminal's size whenever it changes.
func watchSize(fd int) (<-chan proto.Size, func()) {
	changed := make(chan os.Signal, 1)
	sizes := make(chan proto.Size)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			if cols, rows, err := term.GetSize(fd); err == nil {
				sizes <- proto.Size{Rows: uint16(rows), Cols: uint16(cols)}
			}
		}
	}()
	return sizes, func() { signal.Stop(changed) }
}

// exitLabFailed is for a lab that failed before its command had ended, as container runtimes use it.
const exitLabFailed = 125

func runLab(o lab.Options, consoleFile string, verbose bool) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if consoleFile != "" {
		file, err := os.Create(consoleFile)
		if err != nil {
			return err
		}
		defer file.Close()
		o.Console = file
	}
	start := time.Now()
	result, err := lab.Run(ctx, o)
	switch {
	case errors.Is(err, lab.ErrTimeout):
		return withExit(fmt.Errorf("after %v: %w", o.Timeout, err), exitTimeout)
	case ctx.Err() != nil:
		return withExit(errors.New("interrupted"), 130)
	case err != nil:
		return withExit(err, exitLabFailed)
	}
	if verbose {
		fmt.Fprintf(os.Stderr, "lab: command ran %v after %v of boot (lab's clock); %.1f s in all\n",
			result.Run, result.Boot, time.Since(start).Seconds())
	}
	if result.ExitCode != 0 {
		return exitError(result.ExitCode)
	}
	return nil
}
