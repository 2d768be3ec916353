package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cella.dev/cella/reports"
)

// Dense measures what a further idle sandbox costs: it holds ever more of them and reads the machine's
// MemAvailable and the VMMs' own accounts at each step.
type Dense struct {
	// Steps are the numbers of sandboxes alive at each reading, ascending, at least two.
	Steps []int
	// Parallel is how many are created at once.
	Parallel int
	// Only names the arms to measure; others are left out.
	Only []string
	// Memory reads the machine; nil reads /proc.
	Memory func() (availableBytes int64, err error)
	// Settle is how long a reading may take to become steady.
	Settle time.Duration
}

// Name implements Scenario.
func (d *Dense) Name() string { return Density }

// densityWork creates idle sandboxes and knows which processes carry them.
type densityWork struct {
	serverWork
	workers func() ([]int, error)
}

func (w *densityWork) Processes() ([]int, error) { return w.workers() }

// processes is implemented by work whose sandboxes are processes of this machine.
type processes interface{ Processes() ([]int, error) }

// reading is the state of the machine with some sandboxes alive.
type reading struct {
	sandboxes int
	available int64
	memory    Memory
}

// Run implements Scenario.
func (d *Dense) Run(ctx context.Context, s *Session) []reports.Scenario {
	var out []reports.Scenario
	for _, arm := range s.Arms {
		if !slices.Contains(d.Only, arm.Name()) {
			continue
		}
		params := reports.Params{Arm: arm.Name(), Clock: s.Clock, Concurrency: d.Parallel, Sandboxes: d.Steps[len(d.Steps)-1]}
		work, err := arm.Work(ctx, Density)
		if err != nil {
			out = append(out, s.notMeasured(Density, params, err))
			continue
		}
		out = append(out, d.measure(ctx, s, params, work))
		if err := work.Close(); err != nil {
			s.Log("%s: close %s: %v", Density, arm.Name(), err)
		}
	}
	return out
}

func (d *Dense) measure(ctx context.Context, s *Session, params reports.Params, work Work) reports.Scenario {
	held := &holder{work: work, errors: map[string]int{}}
	defer held.release(s)
	var readings []reading
	var failure error
	for _, want := range d.Steps {
		if failure = held.grow(ctx, want, d.Parallel); failure != nil {
			break
		}
		r, err := d.read(ctx, work, want)
		if err != nil {
			failure = err
			break
		}
		readings = append(readings, r)
		s.Progress(Density, want, d.Steps[len(d.Steps)-1])
	}
	out := reports.Scenario{Name: Density, Params: params, N: held.attempts, Unit: reports.UnitNanoseconds, Errors: held.errors}
	if failure != nil {
		out.Partial = fmt.Sprintf("stopped after %d readings: %v", len(readings), failure)
		s.Log("%s: %s: %s", Density, params.Arm, out.Partial)
	}
	fit(&out, readings)
	return out
}

// holder keeps sandboxes alive.
type holder struct {
	work     Work
	mu       sync.Mutex // guards the fields below while grow runs
	releases []func() error
	errors   map[string]int
	attempts int
}

// grow creates until want sandboxes are alive. It fails with the first error.
func (h *holder) grow(ctx context.Context, want, parallel int) error {
	var wg sync.WaitGroup
	var failure error
	slots := make(chan struct{}, parallel)
	for range want - len(h.releases) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
			defer cancel()
			sample, err := h.work.Do(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.attempts++
			if sample.Release != nil {
				h.releases = append(h.releases, sample.Release)
			}
			if err != nil {
				h.errors[Class(err)]++
				failure = err
			}
		})
	}
	wg.Wait()
	return failure
}

func (h *holder) release(s *Session) {
	var wg sync.WaitGroup
	for _, release := range h.releases {
		wg.Go(func() {
			if err := release(); err != nil {
				s.Log("%s: %v", Density, err)
			}
		})
	}
	wg.Wait()
}

// settleEvery and settleBytes define steady: two readings so far apart in time and so close in size.
const (
	settleEvery = 250 * time.Millisecond
	settleBytes = 256 << 10
)

// errElsewhere keeps the memory of this machine from being taken for that of sandboxes elsewhere.
var errElsewhere = errors.New("no VMM process runs on this machine; measure density on the server's own")

// read waits until MemAvailable is steady, since pools refill and the kernel frees lazily, and then reads.
func (d *Dense) read(ctx context.Context, work Work, sandboxes int) (reading, error) {
	memory := d.Memory
	if memory == nil {
		memory = memAvailable
	}
	r := reading{sandboxes: sandboxes}
	last, err := memory()
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for deadline := time.Now().Add(d.Settle); err == nil && time.Now().Before(deadline); {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return r, ctx.Err()
		}
		var now int64
		now, err = memory()
		steady := now-last < settleBytes && last-now < settleBytes
		if last = now; steady {
			break
		}
	}
	if err != nil {
		return r, fmt.Errorf("read MemAvailable: %w", err)
	}
	r.available = last
	p, ok := work.(processes)
	if !ok {
		return r, nil
	}
	pids, err := p.Processes()
	if err != nil {
		return r, fmt.Errorf("list the VMM processes: %w", err)
	}
	r.memory = sumMemory(pids)
	if sandboxes > 0 && r.memory.Processes == 0 {
		return r, errElsewhere
	}
	return r, nil
}

// fit puts slopes over the number of sandboxes into values. Idle workers of the pool are the same at every
// step, so a slope leaves them out; the intercept is what the first sandbox costs beyond the slope.
func fit(out *reports.Scenario, readings []reading) {
	if len(readings) < 2 {
		return
	}
	curve := func(f func(reading) int64) []reports.Point {
		points := make([]reports.Point, len(readings))
		for i, r := range readings {
			points[i] = reports.Point{X: float64(r.sandboxes), Y: float64(f(r))}
		}
		return points
	}
	base := readings[0].available
	used := curve(func(r reading) int64 { return base - r.available })
	out.Curves = map[string][]reports.Point{"used_bytes": used}
	// The reading without sandboxes is the curve's zero and not part of the line: what the first one brings
	// in (template memory, page cache) is the intercept.
	line := used
	if readings[0].sandboxes == 0 && len(used) > 2 {
		line = used[1:]
	}
	slope, intercept := leastSquares(line)
	out.Values = map[string]float64{"slope_bytes": slope, "intercept_bytes": intercept}
	if readings[len(readings)-1].memory.Processes == 0 {
		return
	}
	for name, f := range map[string]func(reading) int64{
		"pss_bytes":           func(r reading) int64 { return r.memory.PSS },
		"private_bytes":       func(r reading) int64 { return r.memory.OwnPrivate },
		"guest_private_bytes": func(r reading) int64 { return r.memory.GuestPrivate },
	} {
		points := curve(f)
		out.Curves[name] = points
		out.Values[name], _ = leastSquares(points)
	}
}

// leastSquares fits y = slope·x + intercept.
func leastSquares(points []reports.Point) (slope, intercept float64) {
	var n, sx, sy, sxx, sxy float64
	for _, p := range points {
		n, sx, sy, sxx, sxy = n+1, sx+p.X, sy+p.Y, sxx+p.X*p.X, sxy+p.X*p.Y
	}
	if d := n*sxx - sx*sx; d != 0 {
		slope = (n*sxy - sx*sy) / d
	}
	return slope, (sy - slope*sx) / n
}
