package reports

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// PercentileKeys are the percentiles of every scenario, in order.
var PercentileKeys = []string{"50", "90", "95", "99", "99.9"}

// minBeyond is how many samples must lie beyond a tail percentile for it to be stated.
const minBeyond = 10

// Range and precision of every histogram: 1 µs to 10 minutes, three significant digits.
const (
	histogramLowest  = 1_000
	histogramHighest = 600_000_000_000
	histogramDigits  = 3
)

// PhaseSample is one phase of one sample.
type PhaseSample struct {
	Name     string
	Duration time.Duration
}

// Series collects the samples of one scenario. All methods are safe for concurrent use.
type Series struct {
	mu     sync.Mutex // guards everything below
	hist   *hdrhistogram.Histogram
	sum    float64
	min    int64
	max    int64
	errors map[string]int
	phases map[string]*phaseSeries
	order  []string
	late   *hdrhistogram.Histogram
}

type phaseSeries struct {
	hist *hdrhistogram.Histogram
	sum  float64
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(histogramLowest, histogramHighest, histogramDigits)
}

// NewSeries returns an empty series.
func NewSeries() *Series {
	return &Series{
		hist:   newHistogram(),
		errors: map[string]int{},
		phases: map[string]*phaseSeries{},
		late:   newHistogram(),
	}
}

// Record adds one success. Phases must sum to total; either every sample of a series has them or none.
func (s *Series) Record(total time.Duration, phases []PhaseSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := total.Nanoseconds()
	if err := s.hist.RecordValue(ns); err != nil {
		s.errors["out_of_range"]++
		return
	}
	if s.hist.TotalCount() == 1 || ns < s.min {
		s.min = ns
	}
	s.max = max(s.max, ns)
	s.sum += float64(ns)
	for _, p := range phases {
		s.phase(p)
	}
}

func (s *Series) phase(p PhaseSample) {
	ps := s.phases[p.Name]
	if ps == nil {
		ps = &phaseSeries{hist: newHistogram()}
		s.phases[p.Name] = ps
		s.order = append(s.order, p.Name)
	}
	ns := max(p.Duration.Nanoseconds(), 0)
	ps.sum += float64(ns)
	// A phase is part of a total that was in range, so this cannot fail.
	_ = ps.hist.RecordValue(ns)
}

// RecordError adds one failure of a class. It stays in N.
func (s *Series) RecordError(class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[class]++
}

// RecordLate adds how much later than intended the generator dispatched an attempt.
func (s *Series) RecordLate(late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.late.RecordValue(min(max(late.Nanoseconds(), 0), histogramHighest))
}

// LateP99 is the 99th percentile of the generator's lateness.
func (s *Series) LateP99() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.late.ValueAtPercentile(99))
}

// Scenario summarises the series.
func (s *Series) Scenario(name string, params Params, warmup int) (Scenario, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Scenario{Name: name, Params: params, Warmup: warmup, Unit: UnitNanoseconds, Errors: map[string]int{}}
	for class, n := range s.errors {
		out.Errors[class] = n
	}
	ok := s.hist.TotalCount()
	out.N = int(ok) + out.Failed()
	out.P = percentiles(s.hist, out.N, s.max)
	if ok == 0 {
		return out, nil
	}
	encoded, err := s.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return out, fmt.Errorf("encode the histogram of %s: %w", name, err)
	}
	out.HdrV2 = string(encoded)
	out.Min, out.Max, out.Mean = s.min, s.max, s.sum/float64(ok)
	out.CI95P50 = medianInterval(s.hist, out.N, s.max)
	for i, phase := range s.order {
		if out.Phases == nil {
			out.Phases = map[string]Phase{}
		}
		ps := s.phases[phase]
		out.Phases[phase] = Phase{Order: i, P50: valueAtRank(ps.hist, (ps.hist.TotalCount()+1)/2), Mean: ps.sum / float64(ok)}
	}
	return out, nil
}

// percentiles states what n attempts allow: failures are attempts slower than any success.
func percentiles(h *hdrhistogram.Histogram, n int, maximum int64) map[string]*int64 {
	out := make(map[string]*int64, len(PercentileKeys))
	for _, key := range PercentileKeys {
		q, _ := strconv.ParseFloat(key, 64)
		out[key] = nil
		// The rank is computed in thousandths so that 0.95 × 200 is 190 and not 190.00000000000003.
		rank := (int64(math.Round(q*10))*int64(n) + 999) / 1000
		if rank < 1 || rank > h.TotalCount() || (key != "50" && int64(n)-rank < minBeyond) {
			continue
		}
		v := min(valueAtRank(h, rank), maximum)
		out[key] = &v
	}
	return out
}

// valueAtRank is the rank-th smallest recorded value (from 1), to the histogram's precision.
func valueAtRank(h *hdrhistogram.Histogram, rank int64) int64 {
	return h.ValueAtPercentile(100 * float64(rank) / float64(h.TotalCount()))
}

// medianInterval is the 95 % interval of the median: ranks n/2 ± 0.98 √n (normal approximation of the
// binomial). Below six samples no pair of ranks covers 95 %.
func medianInterval(h *hdrhistogram.Histogram, n int, maximum int64) *[2]int64 {
	half := 0.98 * math.Sqrt(float64(n))
	lo := int64(math.Floor(float64(n)/2 - half))
	hi := int64(math.Ceil(float64(n)/2+half)) + 1
	if n < 6 || hi > h.TotalCount() && int64(n) > h.TotalCount() {
		return nil
	}
	lo, hi = max(lo, 1), min(hi, h.TotalCount())
	return &[2]int64{min(valueAtRank(h, lo), maximum), min(valueAtRank(h, hi), maximum)}
}

// Histogram decodes the successes of a scenario; nil without any.
func (s *Scenario) Histogram() (*hdrhistogram.Histogram, error) {
	if s.HdrV2 == "" {
		return nil, nil
	}
	h, err := hdrhistogram.Decode([]byte(s.HdrV2))
	if err != nil {
		return nil, fmt.Errorf("decode hdr_v2 of %s: %w", s.Name, err)
	}
	return h, nil
}

// OrderedPhases returns the names of the phases in time order.
func (s *Scenario) OrderedPhases() []string {
	names := make([]string, 0, len(s.Phases))
	for name := range s.Phases {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return s.Phases[a].Order - s.Phases[b].Order })
	return names
}
