package reports

import (
	"fmt"
	"maps"
	"slices"
)

// Caveats say what a result does not claim. They are part of every report.
func Caveats(r *Result) []string {
	var out []string
	switch r.Run.Clock {
	case ClockInstruction:
		out = append(out, "Times are on the instruction clock of an emulated machine (2 ns an instruction): they count every instruction of guest, "+
			"kernel and program, and nothing of caches, memory latency or the cost of a hardware VM exit. They compare arms and commits with each other; they are not hardware milliseconds.")
	case ClockEmulated:
		out = append(out, "Times are the wall clock of an emulated machine. Only ratios within this run mean anything.")
	default:
		out = append(out, "Times hold for the machine named here, in the state named here.")
	}
	out = append(out,
		"Closed loops and bursts show what the system can do; only open loops show what users wait at a given rate.",
		"Tail percentiles with fewer than ten samples beyond them are not stated (–). A failure counts as slower than any success.",
		"Vendors' published figures are not in this table: they were taken elsewhere, from and to other points (docs/benchmarks.md).")
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		switch {
		case s.Skipped != "":
			out = append(out, fmt.Sprintf("%s has no figure of %s (%s): %s.", s.Name, s.Params.Arm, s.Params.load(), s.Skipped))
		case s.Invalid != "":
			out = append(out, fmt.Sprintf("%s of %s (%s) is invalid: %s.", s.Name, s.Params.Arm, s.Params.load(), s.Invalid))
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
