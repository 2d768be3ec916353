package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"cella.dev/cella/reports"
)

// Scenario is one thing to measure, by every arm that can do it.
type Scenario interface {
	Name() string
	// Run measures and returns one entry an arm, skipped arms included. When ctx ends it returns what it
	// has, marked partial.
	Run(ctx context.Context, s *Session) []reports.Scenario
}

// Session is what the scenarios of one run share.
type Session struct {
	Arms  []Arm
	Clock string
	// Rand decides the order in which arms take turns; its seed is in the result.
	Rand *rand.Rand
	// Log is told what happens, one line at a time.
	Log func(format string, args ...any)
	// Progress is told how far a scenario is.
	Progress func(scenario string, done, planned int)
}

// notMeasured is the entry of an arm that could not begin: skipped where the machine lacks what it needs,
// and an unfinished scenario, which makes the result incomplete, for any other error.
func (s *Session) notMeasured(name string, params reports.Params, err error) reports.Scenario {
	out, _ := reports.NewSeries().Scenario(name, params, 0) // without samples there is nothing to encode
	var u *Unavailable
	if errors.As(err, &u) {
		s.Log("%s: %s is skipped: %v", name, params.Arm, err)
		out.Skipped = u.Reason
		return out
	}
	s.Log("%s: %s could not begin: %v", name, params.Arm, err)
	out.Partial = fmt.Sprintf("could not begin: %v", err)
	return out
}
