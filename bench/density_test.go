package bench

import (
	"context"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"cella.dev/cella/reports"
)

func TestParseSmaps(t *testing.T) {
	const smaps = `00400000-00c00000 r-xp 00000000 08:01 123  /usr/bin/cella
Size:               8192 kB
Pss:                 100 kB
Pss_Dirty:             9 kB
Shared_Clean:       4000 kB
Private_Clean:        40 kB
Private_Dirty:         2 kB
7f0000000000-7f0008000000 rw-p 00000000 00:01 99  /memfd:template (deleted)
Pss:                3000 kB
Private_Clean:         0 kB
Private_Dirty:      2048 kB
7f0010000000-7f0010001000 rw-p 00000000 00:00 0
Pss:                   4 kB
Private_Clean:         0 kB
Private_Dirty:         4 kB
VmFlags: rd wr mr
`
	want := Memory{PSS: 3104 << 10, OwnPrivate: 46 << 10, GuestPrivate: 2048 << 10}
	if got := parseSmaps(strings.NewReader(smaps)); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSumMemoryOfThisProcess(t *testing.T) {
	got := sumMemory([]int{os.Getpid(), 1 << 30})
	if got.Processes != 1 || got.PSS == 0 || got.OwnPrivate == 0 {
		t.Errorf("got %+v, want one process with memory", got)
	}
}

// memoryArm lets each idle sandbox cost 3 MB after a first cost of 20 MB.
type memoryArm struct{ live atomic.Int64 }

func (a *memoryArm) Name() string { return ArmCella }
func (a *memoryArm) Work(context.Context, string) (Work, error) {
	return workFunc(func(context.Context) (Sample, error) {
		a.live.Add(1)
		return Sample{Release: func() error { a.live.Add(-1); return nil }}, nil
	}), nil
}

func (a *memoryArm) available() (int64, error) {
	const total = 8_000_000_000
	if a.live.Load() == 0 {
		return total, nil
	}
	return total - 20_000_000 - 3_000_000*a.live.Load(), nil
}

func TestDensityFitsSlopeAndIntercept(t *testing.T) {
	arm := &memoryArm{}
	d := &Dense{Steps: []int{0, 10, 40}, Parallel: 4, Only: []string{ArmCella}, Memory: arm.available}
	result := execute(t, testPlan(t, []Arm{arm}, d))
	s := result.Scenarios[0]
	if s.N != 40 || s.Failed() != 0 || arm.live.Load() != 0 {
		t.Errorf("n %d, errors %v, %d left", s.N, s.Errors, arm.live.Load())
	}
	for name, want := range map[string]float64{"slope_bytes": 3e6, "intercept_bytes": 20e6} {
		if got := s.Values[name]; math.Abs(got-want) > 1 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := s.Curves["used_bytes"]; len(got) != 3 || got[2] != (reports.Point{X: 40, Y: 140e6}) {
		t.Errorf("curve is %v", got)
	}
}

func TestDensityRefusesAServerElsewhere(t *testing.T) {
	arm := &elsewhere{}
	d := &Dense{Steps: []int{0, 2}, Parallel: 1, Only: []string{ArmCella}, Memory: arm.available}
	result := execute(t, testPlan(t, []Arm{arm}, d))
	s := result.Scenarios[0]
	if result.Complete || len(s.Values) != 0 || !strings.Contains(s.Partial, "no VMM process") {
		t.Errorf("complete %v, values %v, partial %q", result.Complete, s.Values, s.Partial)
	}
}

// elsewhere has its sandboxes on another machine: no process of this one carries them.
type elsewhere struct{ memoryArm }

func (e *elsewhere) Work(ctx context.Context, scenario string) (Work, error) {
	inner, err := e.memoryArm.Work(ctx, scenario)
	return &densityWork{serverWork: serverWork{do: inner.Do}, workers: func() ([]int, error) { return nil, nil }}, err
}
