package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cella.dev/cella/bench"
	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/reports"
)

// benchFlags are the flags of `cella bench`.
type benchFlags struct {
	url, sandboxURL, apiKey, template string
	peerURL, peerKey                  string
	serve                             bool
	state                             string
	scenarios, arms                   []string
	size                              bench.Sizes
	out, clock                        string
	json                              bool
	seed                              uint64
	cold                              string
	crun                              bench.Crun
	qemu                              bench.QEMU
}

func newBenchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a server and what one would use instead of it, and write a report",
		Long: `Measure an E2B-compatible server through its public API, and peers (crun, QEMU microvm) doing the same work beside it in
the same run. Writes result.json, report.md, report.html and histograms; the report is written after every scenario, so
Ctrl-C keeps what was measured. docs/benchmarks.md says what each scenario measures.`,
		Example: `  cella bench --serve                                # a server of its own, on loopback
  cella bench --url http://127.0.0.1:3000 --smoke    # one that is running; the key is in E2B_API_KEY
  cella bench compare base/ head/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runBench(ctx, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.url, "url", "", "base URL of the server to measure as arm cella")
	fl.StringVar(&f.sandboxURL, "sandbox-url", "", "base URL of its data plane, if another")
	fl.StringVar(&f.apiKey, "api-key", os.Getenv("E2B_API_KEY"), "its API key (default $E2B_API_KEY)")
	fl.StringVar(&f.template, "template", "base", "template to make sandboxes of")
	fl.StringVar(&f.peerURL, "peer-url", os.Getenv("PEER_URL"), "another E2B-compatible server, measured as arm url (default $PEER_URL)")
	fl.StringVar(&f.peerKey, "peer-api-key", os.Getenv("PEER_API_KEY"), "its API key (default $PEER_API_KEY)")
	fl.BoolVar(&f.serve, "serve", false, "start a server on loopback for the run, as arm cella")
	fl.StringVar(&f.state, "state", "/var/lib/cella", "state directory of that server; needs reflinks (XFS, btrfs)")
	fl.StringSliceVar(&f.scenarios, "scenarios", nil, "only these scenarios")
	fl.StringSliceVar(&f.arms, "arms", nil, "only these arms")
	fl.IntVar(&f.size.N, "n", 0, "samples of every latency scenario, instead of each one's own number")
	fl.BoolVar(&f.size.Smoke, "smoke", false, "a few samples of each: finds gross regressions only")
	fl.StringVar(&f.out, "out", "reports/out/latest", "directory of the report")
	fl.StringVar(&f.clock, "clock", labClock(), "clock of the figures: hardware, instruction or emulated")
	fl.BoolVar(&f.json, "json", false, "print the result as JSON instead of a table")
	fl.Uint64Var(&f.seed, "seed", 0, "seed of the order of arms (default: random; it is in the result)")
	fl.StringVar(&f.cold, "cold", "", "command that cold-boots once and prints {\"cold_boot_ns\":N}, as arm cella of cold_boot (default: cella run --cold)")
	fl.StringVar(&f.crun.Rootfs, "rootfs", "", "directory of a root file system, for arm crun (default: the base template's, mounted)")
	fl.StringVar(&f.qemu.Kernel, "kernel", "", "guest kernel (bzImage), for arm qemu-microvm (default: set-up's)")
	fl.StringVar(&f.qemu.Initrd, "initrd", "", "initramfs with the agent, for arm qemu-microvm (default: the base template's)")
	fl.StringVar(&f.qemu.Disk, "disk", "", "ext4 image of the root, for arm qemu-microvm (default: the base template's)")
	fl.StringVar(&f.qemu.Append, "append", bench.DefaultAppend, "kernel command line, for arm qemu-microvm")
	fl.StringVar(&f.qemu.Console, "console", "", "file for the guest's console, which slows arm qemu-microvm down")
	fl.IntVar(&f.qemu.MemoryMiB, "memory", 256, "guest memory in MiB, for arm qemu-microvm")
	cmd.AddCommand(newBenchCompareCommand(), newBenchNetCommand())
	return cmd
}

// labClock is the clock that this machine's time is: the lab says so in its environment.
func labClock() string {
	switch os.Getenv("CELLA_LAB_CLOCK") {
	case "instruction":
		return reports.ClockInstruction
	case "real":
		return reports.ClockEmulated
	}
	return reports.ClockHardware
}

// coldCommand cold-boots the base template with this binary, unless a flag names another command.
func (f *benchFlags) coldCommand() []string {
	if f.cold != "" {
		return strings.Fields(f.cold)
	}
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, "run", "--cold", "--timing-json", "--state", f.state, "base", "--", "/bin/true"}
}

func runBench(ctx context.Context, f benchFlags, stdout, stderr io.Writer) (err error) {
	console := newBenchConsole(stderr)
	cleanup, err := f.assets(console.log)
	if err != nil {
		return err
	}
	defer func() {
		if err := cleanup(); err != nil {
			console.log("%v", err)
		}
	}()
	if f.serve {
		child, cleanup, err := startBenchServer(ctx, f.state, stderr)
		if err != nil {
			return err
		}
		defer func() {
			if stopErr := cleanup(); stopErr != nil {
				console.log("%v", stopErr)
			}
		}()
		f.url, f.apiKey = child.URL, child.APIKey
	}
	scenarios, err := bench.Select(bench.Scenarios(f.size), f.scenarios)
	if err != nil {
		return err
	}
	arms, err := bench.SelectArms(benchArms(f), f.arms)
	if err != nil {
		return err
	}
	if f.seed == 0 {
		f.seed = rand.Uint64()
	}
	plan := bench.Plan{
		Out: f.out, Scenarios: scenarios, Arms: arms, Log: console.log, Progress: console.progress,
		Env: reports.Collect(f.state, os.Getenv("CELLA_LAB") != ""),
		Run: benchRun(f.clock, f.seed),
	}
	result, err := plan.Execute(ctx)
	console.end()
	if printErr := printResult(stdout, result, f.json || err != nil); printErr != nil {
		return printErr
	}
	if err != nil {
		return fmt.Errorf("the report could not be written, so the result was printed instead: %w", err)
	}
	fmt.Fprintf(stderr, "report: %s/report.html\n", f.out)
	if !result.Complete {
		return errors.New("the result is not complete; it says why")
	}
	return nil
}

// startBenchServer starts this binary's server on loopback, with a run directory of its own, so that another
// server on the machine is not disturbed. The cleanup stops it.
func startBenchServer(ctx context.Context, state string, stderr io.Writer) (*bench.Child, func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program: %w", err)
	}
	run, err := os.MkdirTemp("", "cella-bench-run-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory of sockets: %w", err)
	}
	command := []string{self, "up", "--json", "--listen", "127.0.0.1:0", "--state", state, "--run", run}
	child, err := bench.StartChild(ctx, command, 10*time.Minute, stderr)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(run))
	}
	return child, func() error { return errors.Join(child.Stop(), os.RemoveAll(run)) }, nil
}

func benchArms(f benchFlags) []bench.Arm {
	var arms []bench.Arm
	cold := f.coldCommand()
	if f.url != "" {
		client := e2b.New(e2b.Options{URL: f.url, SandboxURL: f.sandboxURL, APIKey: f.apiKey})
		arms = append(arms, &bench.Server{
			Arm: bench.ArmCella, Client: client, Template: f.template, Bytes: bench.FileBytes, Cold: cold, Workers: bench.VMMs,
		})
	} else {
		arms = append(arms, &bench.Server{Arm: bench.ArmCella, Cold: cold})
	}
	if f.peerURL != "" {
		client := e2b.New(e2b.Options{URL: f.peerURL, APIKey: f.peerKey})
		arms = append(arms, &bench.Server{Arm: bench.ArmURL, Client: client, Template: f.template, Bytes: bench.FileBytes})
	}
	return append(arms, &f.crun, &f.qemu)
}

func benchRun(clock string, seed uint64) reports.Run {
	started := time.Now()
	run := reports.Run{
		Git: "unknown", Started: started.UTC(), Clock: clock, Seed: seed,
		Cmd: benchCommandLine(os.Args, seed),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				run.Git = s.Value
			case "vcs.modified":
				run.Dirty = s.Value == "true"
			}
		}
	}
	// scripts/bench.sh says it for a binary without a stamp: one built in a linked worktree.
	if commit := os.Getenv("CELLA_COMMIT"); run.Git == "unknown" && commit != "" {
		run.Git, run.Dirty = strings.CutSuffix(commit, "-dirty")
	}
	run.ID = started.UTC().Format("20060102T150405Z") + "-" + run.Git[:min(len(run.Git), 9)]
	return run
}

// benchCommandLine is what repeats the run. It leaves the value of keys out: the result is for showing.
func benchCommandLine(args []string, seed uint64) string {
	out := []string{"cella"}
	secret := false
	for _, arg := range args[1:] {
		name, _, inline := strings.Cut(arg, "=")
		isKey := name == "--api-key" || name == "--peer-api-key"
		switch {
		case secret:
			arg = "…"
		case isKey && inline:
			arg = name + "=…"
		}
		secret = isKey && !inline
		if strings.ContainsAny(arg, " \t\"'") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		out = append(out, arg)
	}
	line := strings.Join(out, " ")
	if !strings.Contains(line, "--seed") {
		line += fmt.Sprintf(" --seed %d", seed)
	}
	return line
}

func printResult(w io.Writer, result *reports.Result, asJSON bool) error {
	if !asJSON {
		return reports.Table(w, result)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(result); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
