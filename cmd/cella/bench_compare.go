package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"cella.dev/cella/reports"
)

func newBenchCompareCommand() *cobra.Command {
	var asJSON bool
	var threshold float64
	cmd := &cobra.Command{
		Use:   "compare BASE HEAD",
		Short: "Compare two results of one machine; exit 1 if HEAD is slower",
		Long: `Compare the scenarios that two results share. Refused unless both were taken on the same class of machine and on the same
clock. A change counts if a permutation test gives p < 0.01 and the median moved by more than the threshold.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			base, err := reports.Load(args[0])
			if err != nil {
				return err
			}
			head, err := reports.Load(args[1])
			if err != nil {
				return err
			}
			comparison, err := reports.Compare(base, head, threshold/100)
			if err != nil {
				return err
			}
			if asJSON {
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(comparison); err != nil {
					return fmt.Errorf("print the comparison: %w", err)
				}
			} else if err := comparison.Table(cmd.OutOrStdout()); err != nil {
				return err
			}
			if n := comparison.Slower(); n > 0 {
				return fmt.Errorf("%d of %d scenarios are slower", n, len(comparison.Lines))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().Float64Var(&threshold, "threshold", 2, "smallest change of the median that counts, in percent")
	return cmd
}
