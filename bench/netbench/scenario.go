package netbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"cella.dev/cella/bench"
	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/reports"
)

// Names of the scenarios (design: net_throughput, net_connect, net_latency, net_policy_update).
const (
	Throughput   = "net_throughput"
	Connect      = "net_connect"
	Latency      = "net_latency"
	PolicyUpdate = "net_policy_update"
)

// Network measures all of it, with each number of rules. The arms take turns, each round in another order.
type Network struct {
	Rules  []int
	Rounds int
	// Upload is how long one round's stream lasts; Connects, Pings and Updates are counts a round.
	Upload                   time.Duration
	Connects, Pings, Updates int
}

// Default is the whole benchmark, about a minute and a half; smoke proves that it works.
func Default(smoke bool) *Network {
	if smoke {
		return &Network{Rules: []int{0, 4000}, Rounds: 2, Upload: 300 * time.Millisecond, Connects: 50, Pings: 200, Updates: 2}
	}
	return &Network{Rules: []int{0, 10, 4000}, Rounds: 10, Upload: time.Second, Connects: 200, Pings: 1000, Updates: 5}
}

// Name implements bench.Scenario: it is one run for four scenarios of the result.
func (n *Network) Name() string { return "net" }

// Run implements bench.Scenario.
func (n *Network) Run(ctx context.Context, s *bench.Session) []reports.Scenario {
	out, err := n.run(ctx, s)
	if err != nil {
		empty, _ := reports.NewSeries().Scenario(n.Name(), reports.Params{Arm: "cella", Clock: s.Clock}, 0) // nothing to encode
		empty.Partial = err.Error()
		out = append(out, empty)
	}
	return out
}

// figures are one arm's with one number of rules.
type figures struct {
	arm                    string
	rules                  int
	upload                 []float64 // bytes a second
	connect, ping, replace *reports.Series
}

func (n *Network) run(ctx context.Context, s *bench.Session) (out []reports.Scenario, err error) {
	world, err := testnet.NewWorld()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, testnet.CloseWorld(world)) }()
	servers, err := serveWorld(world)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(servers)) }()
	var arms []arm
	defer func() {
		for _, a := range arms {
			err = errors.Join(err, a.close())
		}
	}()
	for _, open := range []func() (arm, error){newCella, newPlain} {
		a, err := open()
		if err != nil {
			return nil, err
		}
		arms = append(arms, a)
	}
	for i, rules := range n.Rules {
		measured, err := n.measure(ctx, s, arms, rules, func(round int) { s.Progress(n.Name(), i*n.Rounds+round, len(n.Rules)*n.Rounds) })
		if err != nil {
			return out, fmt.Errorf("with %d rules: %w", rules, err)
		}
		for _, f := range measured {
			scenarios, err := f.scenarios(s.Clock)
			if err != nil {
				return out, err
			}
			out = append(out, scenarios...)
		}
	}
	return out, nil
}

func closeAll(list []io.Closer) error {
	var errs []error
	for _, c := range list {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// measure does all rounds with one number of rules.
func (n *Network) measure(ctx context.Context, s *bench.Session, arms []arm, rules int, progress func(round int)) ([]*figures, error) {
	all := make([]*figures, len(arms))
	for i, a := range arms {
		all[i] = &figures{arm: a.name(), rules: rules, connect: reports.NewSeries(), ping: reports.NewSeries(), replace: reports.NewSeries()}
	}
	for round := range n.Rounds {
		for _, i := range s.Rand.Perm(len(arms)) {
			if ctx.Err() != nil {
				return all, ctx.Err()
			}
			if err := n.round(arms[i], all[i]); err != nil {
				return all, fmt.Errorf("%s: %w", arms[i].name(), err)
			}
		}
		progress(round + 1)
	}
	return all, nil
}

// settle lets what a replacement set going in the kernel come to its end, so that the next one is measured alone.
const settle = 50 * time.Millisecond

func (n *Network) round(a arm, f *figures) error {
	for range n.Updates {
		start := time.Now()
		if err := a.setRules(f.rules); err != nil {
			return err
		}
		f.replace.Record(time.Since(start), nil)
		time.Sleep(settle)
	}
	if err := pingPong(a.guest(), n.Pings, record(f.ping)); err != nil {
		return err
	}
	if err := connect(a.guest(), n.Connects, record(f.connect)); err != nil {
		return err
	}
	speed, err := upload(a.guest(), n.Upload)
	f.upload = append(f.upload, speed)
	return err
}

func record(s *reports.Series) func(time.Duration, error) {
	return func(d time.Duration, err error) {
		if err != nil {
			s.RecordError(bench.Class(err))
			return
		}
		s.Record(d, nil)
	}
}

// scenarios renders one arm's figures.
func (f *figures) scenarios(clock string) ([]reports.Scenario, error) {
	params := reports.Params{Arm: f.arm, Clock: clock, Mode: bench.ModeClosed, Concurrency: 1, Rules: f.rules}
	var out []reports.Scenario
	for _, part := range []struct {
		name   string
		series *reports.Series
	}{{Connect, f.connect}, {Latency, f.ping}, {PolicyUpdate, f.replace}} {
		sc, err := part.series.Scenario(part.name, params, 0)
		if err != nil {
			return nil, err
		}
		if part.name == Connect && sc.Mean > 0 {
			sc.Values = map[string]float64{"per_s": 1e9 / sc.Mean}
		}
		out = append(out, sc)
	}
	slices.Sort(f.upload)
	return append(out, reports.Scenario{
		Name: Throughput, Params: params, Unit: reports.UnitNanoseconds, N: len(f.upload), Errors: map[string]int{},
		Values: map[string]float64{"bytes_per_s": f.upload[len(f.upload)/2]},
	}), nil
}
