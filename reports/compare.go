package reports

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
)

// ErrNotComparable means that two results say nothing about each other.
var ErrNotComparable = errors.New("not comparable")

// Change is the outcome of one comparison.
type Change string

// Outcomes of a comparison.
const (
	Same   Change = "same"
	Slower Change = "slower"
	Faster Change = "faster"
	// Unclear means that one side has too few samples to say anything.
	Unclear Change = "unclear"
)

// significance is the p-value below which a difference is not chance.
const significance = 0.01

// Comparison holds head against base.
type Comparison struct {
	Base  string `json:"base"`
	Head  string `json:"head"`
	Lines []Line `json:"lines"`
}

// Line compares one scenario of one arm. Medians are in nanoseconds.
type Line struct {
	Name     string  `json:"name"`
	Params   Params  `json:"params"`
	BaseP50  int64   `json:"base_p50"`
	HeadP50  int64   `json:"head_p50"`
	DeltaPct float64 `json:"delta_pct"`
	// P is the chance of a difference at least as large if nothing changed (two-sided permutation test).
	P          float64 `json:"p_value"`
	BaseN      int     `json:"base_n"`
	HeadN      int     `json:"head_n"`
	BaseFailed int     `json:"base_failed"`
	HeadFailed int     `json:"head_failed"`
	Change     Change  `json:"change"`
}

// Compare holds the scenarios that both results measured against each other. A change counts from the
// threshold, a fraction of the median, on. It refuses results of different classes of host, or of
// different clocks, and results without a scenario in common.
func Compare(base, head *Result, threshold float64) (*Comparison, error) {
	switch {
	case base.Run.Clock != head.Run.Clock:
		return nil, fmt.Errorf("%w: base is on the %s clock, head on the %s clock", ErrNotComparable, base.Run.Clock, head.Run.Clock)
	case base.Env.Class != head.Env.Class:
		return nil, fmt.Errorf("%w: base is of host class %s, head of %s; run both on one machine in one state", ErrNotComparable, base.Env.Class, head.Env.Class)
	}
	out := &Comparison{Base: base.Run.ID, Head: head.Run.ID, Lines: []Line{}}
	for i := range head.Scenarios {
		h := &head.Scenarios[i]
		b := base.Find(h.Name, func(p Params) bool { return p == h.Params })
		if b == nil || h.HdrV2 == "" || b.HdrV2 == "" || b.Invalid != "" || h.Invalid != "" {
			continue
		}
		line, err := compare(b, h, threshold)
		if err != nil {
			return nil, err
		}
		out.Lines = append(out.Lines, line)
	}
	if len(out.Lines) == 0 {
		return nil, fmt.Errorf("%w: no scenario is measured in both", ErrNotComparable)
	}
	return out, nil
}

// minCompare is how many samples each side needs: with three on each side no permutation is rarer than 1 in 20.
const minCompare = 5

func compare(base, head *Scenario, threshold float64) (Line, error) {
	line := Line{
		Name: head.Name, Params: head.Params, BaseN: base.N, HeadN: head.N,
		BaseFailed: base.Failed(), HeadFailed: head.Failed(), P: 1, Change: Unclear,
	}
	b, err := base.samples()
	if err != nil {
		return line, err
	}
	h, err := head.samples()
	if err != nil {
		return line, err
	}
	line.BaseP50, line.HeadP50 = median(b), median(h)
	if line.BaseP50 > 0 {
		line.DeltaPct = 100 * float64(line.HeadP50-line.BaseP50) / float64(line.BaseP50)
	}
	if len(b) < minCompare || len(h) < minCompare {
		return line, nil
	}
	line.P = permutationTest(b, h)
	line.Change = Same
	if line.P < significance && line.DeltaPct > 100*threshold {
		line.Change = Slower
	}
	if line.P < significance && line.DeltaPct < -100*threshold {
		line.Change = Faster
	}
	return line, nil
}

// samples are the attempts, sorted, to the histogram's three digits. A failure is slower than any success:
// a commit that answers fast by failing must not look like an improvement.
func (s *Scenario) samples() ([]int64, error) {
	h, err := s.Histogram()
	if h == nil {
		return nil, err
	}
	var out []int64
	for _, bar := range h.Distribution() {
		// The middle of a histogram's bar: its ends would shift every median by up to a thousandth.
		for range bar.Count {
			out = append(out, (bar.From+bar.To)/2)
		}
	}
	for range s.Failed() {
		out = append(out, histogramHighest)
	}
	return out, nil
}

func median(sorted []int64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)/2]
}

// permutations bounds the smallest p-value that the test can give: 1 in 2,000.
const permutations = 1999

// permutationTest is the two-sided test on the difference of medians: it deals the pooled samples out again
// at random and counts how often they differ at least as much. The seed is fixed, so a comparison repeats.
func permutationTest(a, b []int64) float64 {
	observed := abs(median(a) - median(b))
	pool := slices.Concat(a, b)
	rng := rand.New(rand.NewPCG(1, 2))
	hits := 1 // the deal that was observed is one of those possible
	for range permutations {
		rng.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
		left, right := slices.Clone(pool[:len(a)]), slices.Clone(pool[len(a):])
		slices.Sort(left)
		slices.Sort(right)
		if abs(median(left)-median(right)) >= observed {
			hits++
		}
	}
	return float64(hits) / (permutations + 1)
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}

// Slower counts the scenarios that became slower.
func (c *Comparison) Slower() int {
	n := 0
	for _, l := range c.Lines {
		if l.Change == Slower {
			n++
		}
	}
	return n
}

// Table prints the comparison for a terminal.
func (c *Comparison) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "SCENARIO\tLOAD\tARM\tBASE P50 (n, failed)\tHEAD P50 (n, failed)\tΔ\tP\t\n")
	for _, l := range c.Lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s (%d, %d)\t%s (%d, %d)\t%+.2f %%\t%.4f\t%s\n", l.Name, l.Params.load(), l.Params.Arm,
			FormatNS(l.BaseP50), l.BaseN, l.BaseFailed, FormatNS(l.HeadP50), l.HeadN, l.HeadFailed, l.DeltaPct, l.P, l.Change)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	return nil
}
