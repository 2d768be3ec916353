package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cella.dev/cella/reports"
)

// workFunc is work that is one function.
type workFunc func(ctx context.Context) (Sample, error)

func (f workFunc) Do(ctx context.Context) (Sample, error) { return f(ctx) }
func (f workFunc) Variant() string                        { return "" }
func (f workFunc) Close() error                           { return nil }

// gauge counts attempts that are in flight or not yet released.
type gauge struct {
	mu        sync.Mutex // guards what follows
	now, most int
	total     int
}

func (g *gauge) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now++
	g.total++
	g.most = max(g.most, g.now)
}

func (g *gauge) leave() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
	return nil
}

func newStopwatch(work Work) *stopwatch {
	return &stopwatch{work: work, series: reports.NewSeries(), failed: func(error) {}}
}

func summary(t *testing.T, s *stopwatch) reports.Scenario {
	t.Helper()
	out, err := s.series.Scenario("x", reports.Params{Arm: "a", Clock: reports.ClockHardware}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestClosedKeepsItsConcurrency(t *testing.T) {
	var g gauge
	s := newStopwatch(workFunc(func(context.Context) (Sample, error) {
		g.enter()
		return Sample{Total: time.Millisecond, Release: g.leave}, nil
	}))
	closed(t.Context(), s, 4, 100)
	if out := summary(t, s); out.N != 100 || out.Failed() != 0 || out.Min != 1e6 || out.Max != 1e6 {
		t.Errorf("got n %d, errors %v, min %d, max %d", out.N, out.Errors, out.Min, out.Max)
	}
	if g.now != 0 || g.total != 100 || g.most > 4 {
		t.Errorf("%d left, %d made, %d at once, want 0, 100, at most 4", g.now, g.total, g.most)
	}
}

func TestBurstHoldsAllUntilTheLastHasEnded(t *testing.T) {
	var g gauge
	s := newStopwatch(workFunc(func(context.Context) (Sample, error) {
		g.enter()
		return Sample{Total: time.Millisecond, Release: g.leave}, nil
	}))
	burst(t.Context(), s, 50)
	if g.now != 0 || g.most != 50 {
		t.Errorf("%d left, %d at once, want 0 and 50", g.now, g.most)
	}
	if out := summary(t, s); out.N != 50 {
		t.Errorf("n is %d, want 50", out.N)
	}
}

func TestFailuresStayInNAndAreReleased(t *testing.T) {
	var g gauge
	var calls atomic.Int64
	s := newStopwatch(workFunc(func(context.Context) (Sample, error) {
		g.enter()
		sample := Sample{Total: time.Millisecond, Release: g.leave}
		if calls.Add(1)%4 == 0 {
			return sample, errOutput
		}
		return sample, nil
	}))
	closed(t.Context(), s, 1, 40)
	out := summary(t, s)
	if out.N != 40 || out.Errors["output"] != 10 || g.now != 0 {
		t.Errorf("n %d, errors %v, %d not released; want 40, 10 of class output, 0", out.N, out.Errors, g.now)
	}
}

func TestAnInterruptedAttemptIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newStopwatch(workFunc(func(ctx context.Context) (Sample, error) {
		cancel()
		<-ctx.Done()
		return Sample{}, ctx.Err()
	}))
	closed(ctx, s, 1, 10)
	if out := summary(t, s); out.N != 0 {
		t.Errorf("n is %d, want 0", out.N)
	}
}

// stallingServer answers one at a time and at once, but for one stall.
type stallingServer struct {
	mu    sync.Mutex
	calls int
	stall time.Duration
}

func (s *stallingServer) Do(context.Context) (Sample, error) {
	start := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.calls == 20 {
		<-time.After(s.stall)
	}
	return Sample{Total: time.Since(start)}, nil
}
func (s *stallingServer) Variant() string { return "" }
func (s *stallingServer) Close() error    { return nil }

// TestCoordinatedOmission shows why open loops exist: a server that stalls once delays one attempt of a
// closed loop, and every attempt of an open loop that was due meanwhile.
func TestCoordinatedOmission(t *testing.T) {
	const stall, n, rate = 500 * time.Millisecond, 200, 400
	closedLoop := newStopwatch(&stallingServer{stall: stall})
	closed(t.Context(), closedLoop, 1, n)
	openLoop := newStopwatch(&stallingServer{stall: stall})
	open(t.Context(), openLoop, rate, n, rand.New(rand.NewPCG(1, 1)))

	c, o := summary(t, closedLoop), summary(t, openLoop)
	if c.N != n || o.N != n {
		t.Fatalf("n is %d and %d, want %d", c.N, o.N, n)
	}
	if c.Max < stall.Nanoseconds() || o.Max < stall.Nanoseconds() {
		t.Errorf("the stall of %v is in neither maximum: %d and %d", stall, c.Max, o.Max)
	}
	c50, _ := c.Quantile("50")
	o50, _ := o.Quantile("50")
	// About 180 attempts fall due in 0.45 s, nearly all within the stall, so that the median waits long.
	if c50 > stall.Nanoseconds()/10 {
		t.Errorf("closed loop: p50 is %v, want it to hide the stall", time.Duration(c50))
	}
	if o50 < stall.Nanoseconds()/10 {
		t.Errorf("open loop: p50 is %v, want it to show the stall", time.Duration(o50))
	}
}

func TestClass(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, "timeout"},
		{errOutput, "output"},
		{errors.New("x"), "other"},
	}
	for _, test := range tests {
		if got := Class(test.err); got != test.want {
			t.Errorf("Class(%v) = %s, want %s", test.err, got, test.want)
		}
	}
}
