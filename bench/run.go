package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cella.dev/cella/reports"
)

// Plan is one run of the benchmark.
type Plan struct {
	// Out is the directory of the report. It is written after every scenario.
	Out       string
	Scenarios []Scenario
	Arms      []Arm
	// Run and Env head the result. Run.Seed is the seed of the order in which arms take turns.
	Run reports.Run
	Env reports.Env
	// Log and Progress are told what happens; see Session.
	Log      func(format string, args ...any)
	Progress func(scenario string, done, planned int)
}

// Execute runs the plan. The result is returned, and holds what was measured, even with an error; an error
// means that the report could not be written. Whether everything was measured is in Result.Complete.
func (p *Plan) Execute(ctx context.Context) (*reports.Result, error) {
	start := time.Now()
	result := &reports.Result{Schema: reports.SchemaVersion, Run: p.Run, Env: p.Env, Scenarios: []reports.Scenario{}}
	session := &Session{
		Arms: p.Arms, Clock: p.Run.Clock, Log: p.Log, Progress: p.Progress,
		Rand: rand.New(rand.NewPCG(p.Run.Seed, 0)),
	}
	var failure error
	for i, scenario := range p.Scenarios {
		result.Reasons = append(incomplete(result.Scenarios), fmt.Sprintf("%d of %d scenarios have run", i, len(p.Scenarios)))
		result.Run.ElapsedNS = time.Since(start).Nanoseconds()
		failure = errors.Join(failure, reports.WriteAll(p.Out, result))
		if ctx.Err() != nil {
			result.Reasons = append(incomplete(result.Scenarios),
				fmt.Sprintf("interrupted before %s, with %d of %d scenarios run", scenario.Name(), i, len(p.Scenarios)))
			return result, errors.Join(failure, reports.WriteAll(p.Out, result))
		}
		result.Scenarios = append(result.Scenarios, scenario.Run(ctx, session)...)
	}
	result.Reasons = incomplete(result.Scenarios)
	result.Complete = len(result.Reasons) == 0
	result.Run.ElapsedNS = time.Since(start).Nanoseconds()
	return result, errors.Join(failure, reports.WriteAll(p.Out, result))
}

// incomplete lists what is wrong with the scenarios so far.
func incomplete(scenarios []reports.Scenario) []string {
	var reasons []string
	for _, s := range scenarios {
		if s.Partial != "" {
			reasons = append(reasons, fmt.Sprintf("%s of %s: %s", s.Name, s.Params.Arm, s.Partial))
		}
	}
	return reasons
}
