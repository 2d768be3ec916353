package reports

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrSchema means that a result was written by another version of the schema.
var ErrSchema = errors.New("result of another schema version")

var clocks = []string{ClockHardware, ClockInstruction, ClockEmulated}

// Validate checks that a result keeps the schema's promises: known version and clock, N equal to successes
// plus failures, percentiles that its own histogram confirms, and phases that sum to the total.
func (r *Result) Validate() error {
	if r.Schema != SchemaVersion {
		return fmt.Errorf("%w: schema %d, this program reads %d; render it with the version that wrote it", ErrSchema, r.Schema, SchemaVersion)
	}
	if r.Run.ID == "" {
		return errors.New("run.id is empty")
	}
	if !slices.Contains(clocks, r.Run.Clock) {
		return fmt.Errorf("run.clock is %q, want one of %v", r.Run.Clock, clocks)
	}
	if r.Complete && len(r.Reasons) > 0 {
		return fmt.Errorf("complete, and yet incomplete because %q", r.Reasons[0])
	}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if err := s.validate(r.Run.Clock); err != nil {
			return fmt.Errorf("scenarios[%d] %s of arm %s: %w", i, s.Name, s.Params.Arm, err)
		}
	}
	return nil
}

func (s *Scenario) validate(clock string) error {
	switch {
	case s.Name == "":
		return errors.New("name is empty")
	case s.Params.Arm == "":
		return errors.New("params.arm is empty")
	case s.Params.Clock != clock:
		return fmt.Errorf("params.clock is %q in a run on %q", s.Params.Clock, clock)
	case s.Unit != UnitNanoseconds:
		return fmt.Errorf("unit is %q, want %q", s.Unit, UnitNanoseconds)
	case s.N < 0 || s.Warmup < 0:
		return fmt.Errorf("n %d and warmup %d must not be negative", s.N, s.Warmup)
	case s.Skipped != "" && (s.N > 0 || len(s.Values) > 0):
		return fmt.Errorf("skipped (%s), and yet measured", s.Skipped)
	}
	for name, v := range s.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("values.%s is not a number", name)
		}
	}
	if err := s.validateCounts(); err != nil {
		return err
	}
	return s.validatePhases()
}

func (s *Scenario) validateCounts() error {
	h, err := s.Histogram()
	if err != nil {
		return err
	}
	ok := 0
	if h != nil {
		ok = int(h.TotalCount())
	}
	// A scenario of values alone (density) has neither histogram nor percentiles; N counts what it made.
	if h == nil && s.P == nil && s.N >= s.Failed() {
		return nil
	}
	if s.N != ok+s.Failed() {
		return fmt.Errorf("n is %d, but the histogram holds %d and errors %d", s.N, ok, s.Failed())
	}
	if s.Skipped != "" {
		return nil
	}
	if h == nil {
		h = newHistogram()
	}
	want := percentiles(h, s.N, s.Max)
	for _, key := range PercentileKeys {
		got, present := s.P[key]
		if !present {
			return fmt.Errorf("p.%s is missing; null says that n does not allow it", key)
		}
		if (got == nil) != (want[key] == nil) || got != nil && *got != *want[key] {
			return fmt.Errorf("p.%s is %s, but its histogram says %s", key, show(got), show(want[key]))
		}
	}
	if len(s.P) != len(PercentileKeys) {
		return fmt.Errorf("p has %d entries, want %v", len(s.P), PercentileKeys)
	}
	return nil
}

func show(v *int64) string {
	if v == nil {
		return "null"
	}
	return fmt.Sprint(*v)
}

// validatePhases allows a microsecond, or a thousandth of the total, of rounding.
func (s *Scenario) validatePhases() error {
	if len(s.Phases) == 0 {
		return nil
	}
	sum, orders := 0.0, map[int]bool{}
	for name, p := range s.Phases {
		if p.Order < 0 || p.Order >= len(s.Phases) || orders[p.Order] {
			return fmt.Errorf("phases.%s has order %d of %d phases, or shares it", name, p.Order, len(s.Phases))
		}
		orders[p.Order] = true
		sum += p.Mean
	}
	if math.Abs(sum-s.Mean) > math.Max(1000, s.Mean/1000) {
		return fmt.Errorf("the phases' means sum to %.0f ns, the total's mean is %.0f ns", sum, s.Mean)
	}
	return nil
}
