package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"cella.dev/cella/bench"
	"cella.dev/cella/bench/netbench"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/reports"
)

// newBenchNetCommand measures the sandboxes' network without sandboxes.
func newBenchNetCommand() *cobra.Command {
	var out string
	var smoke, asJSON bool
	var seed uint64
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Measure the sandboxes' network beside a plain tap with nftables",
		Long: `Measure throughput, connections, latency and policy replacement of the sandboxes' network with 0, 10 and 4,000 rules,
beside a plain tap with the same policy in nftables. Runs as root on any machine with TUN and TCX, in network namespaces
of its own, with a namespace as the guest.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := testnet.Enter(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if seed == 0 {
				seed = rand.Uint64()
			}
			console := newBenchConsole(cmd.ErrOrStderr())
			plan := bench.Plan{
				Out: out, Scenarios: []bench.Scenario{netbench.Default(smoke)}, Log: console.log, Progress: console.progress,
				Env: reports.Collect(os.TempDir(), os.Getenv("CELLA_LAB") != ""), Run: benchRun(labClock(), seed),
			}
			result, err := plan.Execute(ctx)
			console.end()
			if err != nil {
				return err
			}
			if err := printResult(cmd.OutOrStdout(), result, asJSON); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "report: %s/report.html\n", out)
			if !result.Complete {
				return errors.New("the result is not complete; it says why")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "reports/out/net", "directory of the report")
	cmd.Flags().BoolVar(&smoke, "smoke", false, "a few samples of each: finds gross regressions only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON instead of a table")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "seed of the order of arms (default: random; it is in the result)")
	return cmd
}
