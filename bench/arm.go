package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/reports"
)

// Names of the scenarios (docs/benchmarks.md says what each is from and to).
const (
	CreateExec = "create_exec"
	ColdBoot   = "cold_boot"
	Exec       = "exec"
	FileWrite  = "file_write"
	FileRead   = "file_read"
	Density    = "density"
)

// Arm is one contender: cella, or what a user would pick instead.
type Arm interface {
	// Name is params.arm of its figures.
	Name() string
	// Work readies the arm for a scenario. The error is an Unavailable if the arm cannot do it here, and
	// its reason goes into the report.
	Work(ctx context.Context, scenario string) (Work, error)
}

// Work does one scenario's unit of work for one arm. Do may be called concurrently.
type Work interface {
	Do(ctx context.Context) (Sample, error)
	// Variant says what of the work differs from the obvious, in a few words; often empty.
	Variant() string
	Close() error
}

// Sample is one success.
type Sample struct {
	Total time.Duration
	// Phases are the parts of Total in order, or nil.
	Phases []reports.PhaseSample
	// Release gives back what the attempt holds (kills its sandbox). It is not part of Total; may be nil.
	Release func() error
}

// Unavailable says why an arm cannot do a scenario on this machine.
type Unavailable struct{ Reason string }

func (u *Unavailable) Error() string { return u.Reason }

func unavailable(format string, args ...any) error {
	return &Unavailable{Reason: fmt.Sprintf(format, args...)}
}

// errOutput means that the work was done wrong: a fast wrong answer is a failure.
var errOutput = errors.New("wrong output")

// Class sorts a failure for reports.Scenario.Errors.
func Class(err error) string {
	var status *e2b.StatusError
	var network net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.As(err, &status):
		return fmt.Sprintf("%dxx", status.Status/100)
	case errors.Is(err, errOutput):
		return "output"
	case errors.Is(err, e2b.ErrProtocol):
		return "protocol"
	case errors.As(err, &network):
		return "connect"
	}
	return "other"
}
