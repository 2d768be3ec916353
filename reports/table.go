package reports

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table prints a result for a terminal.
func Table(w io.Writer, r *Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tLOAD\tARM\tN\tFAILED\tP50\tP90\tP95\tP99\tMAX")
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t", s.Name, s.Params.load(), s.Params.Arm)
		switch {
		case s.Skipped != "":
			fmt.Fprintf(t, "skipped: %s\n", s.Skipped)
		case s.P == nil:
			fmt.Fprintf(t, "%d\t%s\t", s.N, s.errors())
			for _, name := range sortedKeys(s.Values) {
				fmt.Fprintf(t, "%s %s  ", name, formatValue(name, s.Values[name]))
			}
			fmt.Fprintln(t)
		default:
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", s.N, s.errors(),
				s.percentile("50"), s.percentile("90"), s.percentile("95"), s.percentile("99"), FormatNS(s.Max))
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(t, "GOAL\t\tSTATUS\tMEASURED")
	for _, v := range Verdicts(r) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", v.What, v.Goal, v.Status, v.Measured)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	fmt.Fprintf(w, "\nclock %s, host %s, commit %s\n", r.Run.Clock, r.Env.Class[:min(len(r.Env.Class), 19)], r.Run.Git)
	for _, reason := range r.Reasons {
		fmt.Fprintf(w, "not complete: %s\n", reason)
	}
	return nil
}
