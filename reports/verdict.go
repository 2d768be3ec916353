package reports

import (
	"fmt"
	"time"
)

// Status is the outcome of a goal.
type Status string

// Outcomes of a goal.
const (
	Met         Status = "met"
	Missed      Status = "missed"
	NotMeasured Status = "not measured"
)

// Verdict is one goal of the project held against a result.
type Verdict struct {
	What, Goal string
	Status     Status
	// Measured is the figure and what it is compared with, or why there is none.
	Measured  string
	N, Failed int
}

// goal is one line of the verdict table. Exactly one of peer, limit and value is used.
type goal struct {
	what     string
	scenario string
	mode     string // with concurrency: which of the scenario's loads
	c        int
	quantile string
	// peer: quantile at most factor times the peer's peerQuantile of scenario peerScenario.
	peer, peerScenario, peerQuantile string
	factor                           float64
	// limit is absolute and holds on hardware only.
	limit time.Duration
	// value, a name in values, is at most atMost.
	value  string
	atMost float64
}

const megabyte = 1e6

// goals are what the project set out to reach; docs/benchmarks.md gives where each comes from.
var goals = []goal{
	{what: "create → first command, one at a time", scenario: "create_exec", mode: "closed", c: 1, quantile: "50", peer: "crun", peerQuantile: "50", factor: 1},
	{what: "create → first command, one at a time", scenario: "create_exec", mode: "closed", c: 1, quantile: "50", peer: "qemu-microvm", peerScenario: "cold_boot", peerQuantile: "50", factor: 1.0 / 3},
	{what: "create → first command, one at a time", scenario: "create_exec", mode: "closed", c: 1, quantile: "50", limit: 30 * time.Millisecond},
	{what: "create → first command, 50 at once", scenario: "create_exec", mode: "burst", c: 50, quantile: "95", peer: "cella", peerQuantile: "50", factor: 2},
	{what: "create → first command, 50 at once", scenario: "create_exec", mode: "burst", c: 50, quantile: "95", peer: "crun", peerQuantile: "95", factor: 1},
	{what: "create → first command, 50 at once", scenario: "create_exec", mode: "burst", c: 50, quantile: "95", limit: 90 * time.Millisecond},
	{what: "cold boot to the agent", scenario: "cold_boot", mode: "closed", c: 1, quantile: "50", peer: "qemu-microvm", peerQuantile: "50", factor: 0.5},
	{what: "memory of one more idle sandbox, everything counted", scenario: "density", value: "slope_bytes", atMost: 5 * megabyte},
	{what: "the VMM's own private memory", scenario: "density", value: "private_bytes", atMost: 3 * megabyte},
}

// Verdicts holds every goal against the result.
func Verdicts(r *Result) []Verdict {
	out := make([]Verdict, 0, len(goals))
	for _, g := range goals {
		out = append(out, g.judge(r))
	}
	return out
}

func (g goal) judge(r *Result) Verdict {
	v := Verdict{What: g.what, Goal: g.text(), Status: NotMeasured}
	s := r.find(g.scenario, "cella", g.mode, g.c)
	if s == nil {
		v.Measured = r.whyNot(g.scenario, "cella")
		return v
	}
	v.N, v.Failed = s.N, s.Failed()
	if s.Invalid != "" {
		v.Measured = "invalid: " + s.Invalid
		return v
	}
	if g.value != "" {
		return g.judgeValue(v, s)
	}
	got, ok := s.Quantile(g.quantile)
	if !ok {
		v.Measured = fmt.Sprintf("p%s needs more samples or fewer failures than n = %d, %d failed", g.quantile, s.N, s.Failed())
		return v
	}
	if g.limit > 0 {
		if r.Run.Clock != ClockHardware {
			v.Measured = fmt.Sprintf("%s on the %s clock, which is not a hardware millisecond", FormatNS(got), r.Run.Clock)
			return v
		}
		return v.decide(float64(got), float64(g.limit), FormatNS(got))
	}
	return g.judgePeer(r, v, got)
}

func (g goal) judgeValue(v Verdict, s *Scenario) Verdict {
	got, ok := s.Values[g.value]
	if !ok {
		v.Measured = "the run has no " + g.value
		if s.Partial != "" {
			v.Measured += ": " + s.Partial
		}
		return v
	}
	return v.decide(got, g.atMost, FormatBytes(got))
}

func (g goal) judgePeer(r *Result, v Verdict, got int64) Verdict {
	name := g.peerScenario
	if name == "" {
		name = g.scenario
	}
	mode, c := g.mode, g.c
	peer := r.find(name, g.peer, mode, c)
	if peer == nil {
		v.Measured = FormatNS(got) + "; " + r.whyNot(name, g.peer)
		return v
	}
	base, ok := peer.Quantile(g.peerQuantile)
	if !ok || base == 0 || peer.Invalid != "" {
		v.Measured = fmt.Sprintf("%s; %s has no sound p%s (n = %d)", FormatNS(got), g.peer, g.peerQuantile, peer.N)
		return v
	}
	ratio := float64(got) / float64(base)
	return v.decide(ratio, g.factor, fmt.Sprintf("%s against %s: %.2f ×", FormatNS(got), FormatNS(base), ratio))
}

func (v Verdict) decide(got, limit float64, measured string) Verdict {
	v.Status, v.Measured = Missed, measured
	if got <= limit {
		v.Status = Met
	}
	return v
}

// text says the goal in words.
func (g goal) text() string {
	switch {
	case g.value != "":
		return "≤ " + FormatBytes(g.atMost)
	case g.limit > 0:
		return fmt.Sprintf("p%s ≤ %s on hardware", g.quantile, FormatNS(g.limit.Nanoseconds()))
	case g.peer == "cella":
		return fmt.Sprintf("p%s ≤ %.3g × own p%s", g.quantile, g.factor, g.peerQuantile)
	}
	whose := g.peer
	if g.peerScenario != "" {
		whose += " " + g.peerScenario
	}
	return fmt.Sprintf("p%s ≤ %.2g × %s p%s", g.quantile, g.factor, whose, g.peerQuantile)
}

// find returns the measured scenario of an arm under a load; an empty mode takes any.
func (r *Result) find(name, arm, mode string, c int) *Scenario {
	return r.Find(name, func(p Params) bool {
		return p.Arm == arm && (mode == "" || p.Mode == mode && p.Concurrency == c)
	})
}

// whyNot says why an arm has no figure of a scenario.
func (r *Result) whyNot(name, arm string) string {
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if s.Name == name && s.Params.Arm == arm && s.Skipped != "" {
			return arm + " was skipped: " + s.Skipped
		}
	}
	return arm + " was not in this run"
}
