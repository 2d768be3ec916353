package reports

import "time"

// SchemaVersion is the only value of Result.Schema that this package reads or writes.
const SchemaVersion = 1

// UnitNanoseconds is the unit of every latency in a result.
const UnitNanoseconds = "ns"

// Clocks that a figure can be read on. A figure of one is never compared with a figure of another.
const (
	// ClockHardware is the monotonic clock of a machine whose instructions run on a real CPU.
	ClockHardware = "hardware"
	// ClockInstruction counts the instructions of an emulated machine (2 ns each); idle time is skipped or
	// counted as it passes. It repeats to a fraction of a percent and knows nothing of caches.
	ClockInstruction = "instruction"
	// ClockEmulated is the wall clock of an emulated machine: good for ratios within one run and nothing else.
	ClockEmulated = "emulated"
)

// Result is one run of a benchmark. It is written again after every scenario, so that an interrupted run
// leaves what it measured.
type Result struct {
	Schema int `json:"schema"`
	// Complete is true only if every planned scenario was measured or skipped for a stated reason.
	Complete bool `json:"complete"`
	// Reasons say why the result is not complete.
	Reasons   []string   `json:"reasons,omitempty"`
	Run       Run        `json:"run"`
	Env       Env        `json:"env"`
	Scenarios []Scenario `json:"scenarios"`
}

// Run says what was run, so that it can be run again.
type Run struct {
	ID string `json:"id"`
	// Git is the commit of the benchmark's binary, or "unknown".
	Git   string `json:"git"`
	Dirty bool   `json:"dirty"`
	// Cmd is the command line that repeats the run.
	Cmd     string    `json:"cmd"`
	Started time.Time `json:"started"`
	// Clock is one of the Clock constants and holds for every scenario of the run.
	Clock string `json:"clock"`
	// Seed fixed the order in which arms took turns.
	Seed uint64 `json:"seed"`
	// ElapsedNS is how long the run took until this result was written, on Clock.
	ElapsedNS int64 `json:"elapsed_ns"`
}

// Scenario is one measured distribution, or one set of values, of one arm.
type Scenario struct {
	// Name is one of the names that docs/benchmarks.md defines, the same for every arm that does the same work.
	Name   string `json:"name"`
	Params Params `json:"params"`
	// Skipped says why nothing was measured. All figures are then zero or null.
	Skipped string `json:"skipped,omitempty"`
	// Partial says why fewer samples were taken than planned.
	Partial string `json:"partial,omitempty"`
	// Invalid says why the figures must not be quoted, for example because the generator was late.
	Invalid string `json:"invalid,omitempty"`
	// N counts the measured attempts, failures included, warm-up excluded.
	N      int `json:"n"`
	Warmup int `json:"warmup"`
	// Errors counts the failures in N by class (see bench.Class).
	Errors map[string]int `json:"errors"`
	Unit   string         `json:"unit"`
	// P holds the percentiles of PercentileKeys. A failure counts as slower than any success. The median is
	// always stated if it falls on a success; the others are null where fewer than ten samples lie beyond.
	P map[string]*int64 `json:"p"`
	// CI95P50 is the 95 % confidence interval of the median by order statistics; null below six samples.
	CI95P50 *[2]int64 `json:"ci95_p50"`
	Min     int64     `json:"min"`
	Mean    float64   `json:"mean"`
	Max     int64     `json:"max"`
	// HdrV2 holds the successes: a compressed HdrHistogram (V2 encoding) in base64.
	HdrV2 string `json:"hdr_v2,omitempty"`
	// Phases are the parts of the latency. Their means sum to Mean; medians do not add.
	Phases map[string]Phase `json:"phases,omitempty"`
	// Values are figures that are not latencies, by the names of docs/benchmarks.md.
	Values map[string]float64 `json:"values,omitempty"`
	// Curves are what Values were fitted from, by name.
	Curves    map[string][]Point `json:"curves,omitempty"`
	Generator *Generator         `json:"generator,omitempty"`
}

// Params tell apart the scenarios of one name. Zero means that the parameter does not apply.
type Params struct {
	// Arm says whose figure it is: cella, or the peer.
	Arm   string `json:"arm"`
	Clock string `json:"clock"`
	// Mode is how load was offered: closed, burst or open.
	Mode        string  `json:"mode,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	RatePerS    float64 `json:"rate_per_s,omitempty"`
	Cache       string  `json:"cache,omitempty"`
	Sandboxes   int     `json:"sandboxes,omitempty"`
	Bytes       int64   `json:"bytes,omitempty"`
	// RestNS is how long the system was left alone before each turn of an arm.
	RestNS int64 `json:"rest_ns,omitempty"`
	Rules  int   `json:"rules,omitempty"`
	// Variant is anything else that changes the work, in a few words.
	Variant string `json:"variant,omitempty"`
}

// Phase is one part of a latency, in nanoseconds.
type Phase struct {
	// Order is the phase's place in time, from 0.
	Order int     `json:"order"`
	P50   int64   `json:"p50"`
	Mean  float64 `json:"mean"`
}

// Point is one point of a curve.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Generator says how well the load generator did its own job.
type Generator struct {
	// LateP99NS is the 99th percentile of actual minus intended dispatch.
	LateP99NS int64 `json:"late_p99_ns"`
	// CPUShare is the part of the machine's CPU time that the generator's process used while it measured.
	CPUShare float64 `json:"cpu_share"`
}

// Failed counts the attempts that failed.
func (s *Scenario) Failed() int {
	n := 0
	for _, c := range s.Errors {
		n += c
	}
	return n
}

// Quantile returns a percentile by its key in PercentileKeys; false where it is not stated.
func (s *Scenario) Quantile(key string) (int64, bool) {
	v := s.P[key]
	if v == nil {
		return 0, false
	}
	return *v, true
}

// Find returns the first measured scenario that the predicate accepts, or nil.
func (r *Result) Find(name string, accept func(Params) bool) *Scenario {
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if s.Name == name && s.Skipped == "" && accept(s.Params) {
			return s
		}
	}
	return nil
}
