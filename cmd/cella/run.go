package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/internal/agentrpc"
	"cella.dev/cella/node"
)

// runOptions are the flags of cella run.
type runOptions struct {
	nodeFlags
	cold   bool
	timing bool
	env    map[string]string
	user   string
	dir    string
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run TEMPLATE -- COMMAND [ARGUMENT...]",
		Short: "Run one command in a sandbox of its own, without a server",
		Long: "Run restores a sandbox from TEMPLATE, runs COMMAND in it, passes on its output and exit code, and\n" +
			"kills the sandbox. The base template is built at first use.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			return runOnce(ctx, o, args[0], args[1:])
		},
	}
	o.register(cmd.Flags())
	o.registerNetwork(cmd.Flags(), "off")
	cmd.Flags().BoolVar(&o.cold, "cold", false, "boot the kernel instead of restoring the snapshot")
	cmd.Flags().BoolVar(&o.timing, "timing-json", false, "print the time of each phase on standard error as JSON")
	cmd.Flags().StringToStringVarP(&o.env, "env", "e", nil, "environment variables, NAME=VALUE")
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "user to run as (default: the template's)")
	cmd.Flags().StringVarP(&o.dir, "dir", "C", "", "working directory (default: the template's)")
	return cmd
}

func runOnce(ctx context.Context, o runOptions, template string, command []string) (err error) {
	// A run directory of its own lets any number of these run beside a server.
	o.run = o.run + "-run-" + strconv.Itoa(os.Getpid())
	o.poolMax = 0
	defer os.RemoveAll(o.run)
	opts, err := o.options()
	if err != nil {
		return err
	}
	n, err := node.Open(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeNode(n)) }()
	if template == "base" {
		if err := ensureBase(ctx, n); err != nil {
			return err
		}
	}
	s, err := n.Create(ctx, node.CreateRequest{Template: template, Timeout: 24 * time.Hour, Cold: o.cold})
	if err != nil {
		return err
	}
	start := time.Now()
	conn, err := n.Dial(ctx, s.ID, wire.PortAgent)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := agentrpc.Command{Path: command[0], Args: command[1:], Env: o.env, Dir: o.dir, User: o.user}
	code, err := agentrpc.Run(ctx, conn, c, agentrpc.Output{Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	if o.timing {
		printTiming(s, time.Since(start))
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// closeNode ends all that the node runs.
func closeNode(n *node.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.Close(ctx)
}

// printTiming prints phases in nanoseconds. cold_boot_ns is the time from the start of the VMM to the agent's
// first answer, for a cold boot; create_ns the same for a restore.
func printTiming(s node.Sandbox, exec time.Duration) {
	timing := map[string]int64{"exec_ns": exec.Nanoseconds()}
	total, name := int64(0), "create_ns"
	for _, p := range s.Phases {
		timing[p.Name+"_ns"] = p.Duration.Nanoseconds()
		total += p.Duration.Nanoseconds()
		if p.Name == "boot" {
			name = "cold_boot_ns"
		}
	}
	timing[name] = total
	json.NewEncoder(os.Stderr).Encode(timing)
}
