package bench

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"cella.dev/cella/reports"
)

// Modes of offering load (params.mode).
const (
	// ModeClosed keeps a number of attempts in flight: the next starts when one has ended. Latency runs
	// from the actual start. A server that stalls slows the generator, which hides the stall; so closed
	// loops measure capacity, not what users wait.
	ModeClosed = "closed"
	// ModeBurst starts a number of attempts at one instant. Latency runs from that instant.
	ModeBurst = "burst"
	// ModeOpen starts attempts at a fixed rate whatever the server does. Latency runs from the intended
	// start, so a stall is seen by every attempt that it delayed.
	ModeOpen = "open"
)

// attemptTimeout bounds one attempt; longer ones are failures of class timeout.
const attemptTimeout = 2 * time.Minute

// stopwatch measures attempts and files them in a series. A nil series is warm-up.
type stopwatch struct {
	work   Work
	series *reports.Series
	// failed is told every failure; must be safe for concurrent use.
	failed func(error)
}

// attempt does the work once. Intended is when it should have begun; fromIntended says that latency counts
// from there. It returns what gives back the attempt's sandbox, never nil.
func (s *stopwatch) attempt(ctx context.Context, intended time.Time, fromIntended bool) (release func()) {
	late := time.Since(intended)
	ctxAttempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	sample, err := s.work.Do(ctxAttempt)
	release = func() {
		if sample.Release == nil {
			return
		}
		if err := sample.Release(); err != nil {
			s.failed(err)
		}
	}
	// An attempt that the user's Ctrl-C cut short says nothing of the server.
	if ctx.Err() != nil {
		return release
	}
	if err != nil {
		s.failed(err)
	}
	if s.series == nil {
		return release
	}
	s.series.RecordLate(late)
	if err != nil {
		s.series.RecordError(Class(err))
		return release
	}
	if fromIntended {
		sample.Total += late
		if len(sample.Phases) > 0 {
			sample.Phases = append([]reports.PhaseSample{{Name: "queue", Duration: late}}, sample.Phases...)
		}
	}
	s.series.Record(sample.Total, sample.Phases)
	return release
}

// closed keeps c attempts in flight until n were made or ctx ended.
func closed(ctx context.Context, s *stopwatch, c, n int) {
	var wg sync.WaitGroup
	tickets := make(chan struct{}, n)
	for range n {
		tickets <- struct{}{}
	}
	close(tickets)
	for range min(c, n) {
		wg.Go(func() {
			for range tickets {
				if ctx.Err() != nil {
					return
				}
				s.attempt(ctx, time.Now(), false)()
			}
		})
	}
	wg.Wait()
}

// burst starts n attempts at one instant and releases all of them after the last has ended, so that n
// sandboxes are alive together.
func burst(ctx context.Context, s *stopwatch, n int) {
	var wg sync.WaitGroup
	releases := make([]func(), n)
	gate := make(chan struct{})
	var start time.Time
	for i := range n {
		wg.Go(func() {
			<-gate
			releases[i] = s.attempt(ctx, start, true)
		})
	}
	start = time.Now()
	close(gate)
	wg.Wait()
	for _, release := range releases {
		wg.Go(release)
	}
	wg.Wait()
}

// open starts n attempts at a mean rate a second, with exponential gaps from rng (Poisson arrivals), until
// n were started or ctx ended. It never waits for an answer before the next start.
func open(ctx context.Context, s *stopwatch, rate float64, n int, rng *rand.Rand) {
	var wg sync.WaitGroup
	defer wg.Wait()
	intended := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for range n {
		intended = intended.Add(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
		if wait := time.Until(intended); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		at := intended
		wg.Go(func() { s.attempt(ctx, at, true)() })
	}
}
