package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"cella.dev/cella/reports"
)

// Latency measures how long one unit of work takes, under one kind of load. Arms take turns unit by unit,
// in an order shuffled each round, so that a drift of the machine meets all of them.
type Latency struct {
	// Scenario is what is measured: a name of arm.go.
	Scenario string
	// Mode is ModeClosed, ModeBurst or ModeOpen; Concurrency is in flight (closed) or at once (burst).
	Mode        string
	Concurrency int
	// RatePerS is the mean rate of an open loop.
	RatePerS float64
	// N is the number of measured attempts of each arm, Warmup of dropped ones before them.
	N, Warmup int
	// NOf and WarmupOf replace N and Warmup for arms that take long.
	NOf, WarmupOf map[string]int
	// Rest is how long everything is left alone before each turn of any arm, so that what an arm leaves running,
	// such as a pool that fills up again, is not charged to the next. It is part of the result's parameters.
	Rest time.Duration
	// Only names the arms that take part; nil means all.
	Only []string
	// Bytes is params.bytes of file scenarios.
	Bytes int64
}

// Name is the scenario's.
func (l *Latency) Name() string { return l.Scenario }

// turn is one arm's part in a scenario.
type turn struct {
	arm     Arm
	n       int // attempts planned
	unit    int // attempts a turn
	warmup  int
	watch   stopwatch
	params  reports.Params
	series  *reports.Series
	streak  atomic.Int64 // failures since the last success
	lastErr atomic.Pointer[error]
	cpu     time.Duration // of this process, during the arm's turns
	wall    time.Duration
	partial string
}

// maxStreak failures in a row end an arm's part: a server that is down must not cost a timeout an attempt.
const maxStreak = 10

// Run implements Scenario.
func (l *Latency) Run(ctx context.Context, s *Session) []reports.Scenario {
	var out []reports.Scenario
	var turns []*turn
	place := map[*turn]int{} // in out, which keeps the order of the arms
	for _, arm := range s.Arms {
		if l.Only != nil && !slices.Contains(l.Only, arm.Name()) {
			continue
		}
		t, err := l.ready(ctx, s, arm)
		if err != nil {
			out = append(out, s.notMeasured(l.Scenario, l.params(s, arm), err))
			continue
		}
		turns = append(turns, t)
		place[t] = len(out)
		out = append(out, reports.Scenario{})
	}
	l.interleave(ctx, s, turns)
	for _, t := range turns {
		out[place[t]] = t.finish(ctx, l.Scenario)
		if err := t.watch.work.Close(); err != nil {
			s.Log("%s: close %s: %v", l.Scenario, t.arm.Name(), err)
		}
	}
	return out
}

func (l *Latency) params(s *Session, arm Arm) reports.Params {
	return reports.Params{
		Arm: arm.Name(), Clock: s.Clock, Mode: l.Mode, Concurrency: l.Concurrency, RatePerS: l.RatePerS, Bytes: l.Bytes,
		Cache: "warm", RestNS: l.Rest.Nanoseconds(),
	}
}

func (l *Latency) ready(ctx context.Context, s *Session, arm Arm) (*turn, error) {
	n, warmup := l.N, l.Warmup
	if of, ok := l.NOf[arm.Name()]; ok {
		n = of
	}
	if of, ok := l.WarmupOf[arm.Name()]; ok {
		warmup = of
	}
	work, err := arm.Work(ctx, l.Scenario)
	if err != nil {
		return nil, err
	}
	t := &turn{arm: arm, n: n, unit: l.unit(n), series: reports.NewSeries(), params: l.params(s, arm)}
	t.params.Variant = work.Variant()
	t.watch = stopwatch{work: &counted{Work: work, turn: t}, failed: func(err error) {
		t.lastErr.Store(&err)
		s.Log("%s: %s: %v", l.Scenario, arm.Name(), err)
	}}
	closed(ctx, &t.watch, l.Concurrency, warmup)
	t.warmup = warmup
	t.watch.series = t.series
	return t, nil
}

// unit is how many attempts an arm makes in one turn.
func (l *Latency) unit(n int) int {
	switch {
	case l.Mode == ModeBurst:
		return l.Concurrency
	case l.Mode == ModeClosed && l.Concurrency == 1:
		return 1
	}
	return n
}

// counted keeps the streak of failures.
type counted struct {
	Work
	turn *turn
}

func (c *counted) Do(ctx context.Context) (Sample, error) {
	sample, err := c.Work.Do(ctx)
	if err != nil {
		c.turn.streak.Add(1)
	} else {
		c.turn.streak.Store(0)
	}
	return sample, err
}

// interleave gives each arm its turns, spread evenly over the rounds of the arm that has most.
func (l *Latency) interleave(ctx context.Context, s *Session, turns []*turn) {
	rounds, planned, done := 0, 0, 0
	for _, t := range turns {
		rounds = max(rounds, t.units())
		planned += t.n
	}
	for round := range rounds {
		due := make([]*turn, 0, len(turns))
		for _, t := range turns {
			if (round+1)*t.units()/rounds > round*t.units()/rounds {
				due = append(due, t)
			}
		}
		s.Rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
		for _, t := range due {
			if ctx.Err() != nil {
				return
			}
			l.take(ctx, s, t)
			done += t.unit
			s.Progress(l.Scenario, min(done, planned), planned)
		}
	}
}

func (t *turn) units() int { return (t.n + t.unit - 1) / t.unit }

func (l *Latency) take(ctx context.Context, s *Session, t *turn) {
	if t.partial != "" {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(l.Rest):
	}
	cpu, start := cpuTime(), time.Now()
	switch l.Mode {
	case ModeBurst:
		burst(ctx, &t.watch, t.unit)
	case ModeOpen:
		open(ctx, &t.watch, l.RatePerS, t.unit, s.Rand)
	default:
		closed(ctx, &t.watch, l.Concurrency, t.unit)
	}
	t.cpu += cpuTime() - cpu
	t.wall += time.Since(start)
	if streak := t.streak.Load(); streak >= max(maxStreak, int64(l.Concurrency)) {
		t.partial = fmt.Sprintf("gave up after %d failures in a row, the last: %v", streak, *t.lastErr.Load())
		s.Log("%s: %s: %s", l.Scenario, t.arm.Name(), t.partial)
	}
}

// finish summarises an arm's part.
func (t *turn) finish(ctx context.Context, name string) reports.Scenario {
	out, err := t.series.Scenario(name, t.params, t.warmup)
	planned := t.units() * t.unit
	switch {
	case err != nil:
		out.Partial = err.Error()
	case t.partial != "":
		out.Partial = t.partial
	case ctx.Err() != nil && out.N < planned:
		out.Partial = fmt.Sprintf("interrupted after %d of %d", out.N, planned)
	}
	late := t.series.LateP99()
	out.Generator = &reports.Generator{LateP99NS: late.Nanoseconds()}
	if t.wall > 0 {
		out.Generator.CPUShare = t.cpu.Seconds() / (t.wall.Seconds() * float64(runtime.NumCPU()))
	}
	// In a burst the wait for a CPU to start on is part of the latency, and of what is measured.
	if p50, ok := out.Quantile("50"); ok && t.params.Mode != ModeBurst && late > time.Millisecond && late.Nanoseconds() > p50/10 {
		out.Invalid = fmt.Sprintf("the generator was %v late at its 99th percentile, over a tenth of the median", late)
	}
	return out
}

// cpuTime is what this process has used of CPUs so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
