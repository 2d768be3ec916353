package bench

import (
	"context"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/bench/e2b/e2btest"
	"cella.dev/cella/reports"
)

func testPlan(t *testing.T, arms []Arm, scenarios ...Scenario) *Plan {
	t.Helper()
	return &Plan{
		Out: t.TempDir(), Scenarios: scenarios, Arms: arms,
		Run: reports.Run{ID: "test", Clock: reports.ClockHardware, Seed: 1},
		Log: t.Logf, Progress: func(string, int, int) {},
	}
}

func serverArm(s *e2btest.Server) *Server {
	return &Server{
		Arm: ArmCella, Client: e2b.New(e2b.Options{URL: s.URL, APIKey: s.Key}), Template: "base", Bytes: 16,
	}
}

func execute(t *testing.T, p *Plan) *reports.Result {
	t.Helper()
	if _, err := p.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What counts is what was written.
	result, err := reports.Load(p.Out)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestCreateExecAgainstAServer(t *testing.T) {
	server := e2btest.New()
	defer server.Close()
	p := testPlan(t, []Arm{serverArm(server)},
		&Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 1, N: 30, Warmup: 2},
		&Latency{Scenario: CreateExec, Mode: ModeBurst, Concurrency: 10, N: 20},
		&Latency{Scenario: Exec, Mode: ModeClosed, Concurrency: 1, N: 20, Warmup: 1},
		&Latency{Scenario: FileWrite, Mode: ModeClosed, Concurrency: 1, N: 20, Bytes: 16},
		&Latency{Scenario: FileRead, Mode: ModeClosed, Concurrency: 1, N: 20, Bytes: 16},
	)
	result := execute(t, p)
	if !result.Complete {
		t.Fatalf("not complete: %v", result.Reasons)
	}
	if server.Live() != 0 {
		t.Errorf("%d sandboxes left behind", server.Live())
	}
	if want := 30 + 2 + 20 + 3; server.Created() != want {
		t.Errorf("%d sandboxes made, want %d", server.Created(), want)
	}
	if server.MaxLive() != 10 {
		t.Errorf("%d sandboxes at once, want the burst's 10", server.MaxLive())
	}
	one := result.Scenarios[0]
	if one.N != 30 || one.Warmup != 2 || one.Failed() != 0 || one.Generator == nil {
		t.Errorf("n %d, warm-up %d, failed %d, generator %v", one.N, one.Warmup, one.Failed(), one.Generator)
	}
	if got, want := one.OrderedPhases(), []string{"claim", "disk", "restore", "handshake", "api", "exec"}; !slices.Equal(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
	sum := 0.0
	for _, phase := range one.Phases {
		sum += phase.Mean
	}
	if math.Abs(sum-one.Mean) > 1 {
		t.Errorf("phases sum to %.0f, the total is %.0f", sum, one.Mean)
	}
	if one.Phases["claim"].Mean != 4000 {
		t.Errorf("claim is %.0f ns, want the server's 4,000", one.Phases["claim"].Mean)
	}
	if got := result.Scenarios[1].OrderedPhases()[0]; got != "queue" {
		t.Errorf("a burst's first phase is %s, want queue", got)
	}
}

func TestFailingServerLeavesAnHonestResult(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*e2btest.Server)
		class string
	}{
		{"creates refused", func(s *e2btest.Server) { s.CreateStatus = 503 }, "5xx"},
		{"wrong output", func(s *e2btest.Server) { s.Output = "ho\n" }, "output"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := e2btest.New()
			defer server.Close()
			test.spoil(server)
			p := testPlan(t, []Arm{serverArm(server)}, &Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 1, N: 100})
			result := execute(t, p)
			s := result.Scenarios[0]
			if result.Complete || s.N != maxStreak || s.Errors[test.class] != maxStreak || s.P["50"] != nil {
				t.Errorf("complete %v, n %d, errors %v, p50 %v", result.Complete, s.N, s.Errors, s.P["50"])
			}
			if !strings.HasPrefix(s.Partial, "gave up after 10 failures in a row") || server.Live() != 0 {
				t.Errorf("partial %q, %d sandboxes left", s.Partial, server.Live())
			}
		})
	}
}

func TestInterruptKeepsWhatWasMeasured(t *testing.T) {
	server := e2btest.New()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	server.OnExec = func() {
		if server.Created() == 7 {
			cancel()
		}
	}
	p := testPlan(t, []Arm{serverArm(server)},
		&Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 1, N: 100},
		&Latency{Scenario: Exec, Mode: ModeClosed, Concurrency: 1, N: 100},
	)
	if _, err := p.Execute(ctx); err != nil {
		t.Fatal(err)
	}
	result, err := reports.Load(p.Out)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create_exec of cella: interrupted after 6 of 100",
		"interrupted before exec, with 1 of 2 scenarios run",
	}
	if result.Complete || !slices.Equal(result.Reasons, want) {
		t.Errorf("complete %v, reasons %q, want %q", result.Complete, result.Reasons, want)
	}
	if n := result.Scenarios[0].N; n != 6 || server.Live() != 0 {
		t.Errorf("n %d, want 6; %d sandboxes left", n, server.Live())
	}
}

// fixedArm takes a fixed time for everything and notes its turns.
type fixedArm struct {
	name  string
	turns *[]string
}

func (a fixedArm) Name() string { return a.name }
func (a fixedArm) Work(context.Context, string) (Work, error) {
	return workFunc(func(context.Context) (Sample, error) {
		*a.turns = append(*a.turns, a.name)
		return Sample{Total: time.Millisecond}, nil
	}), nil
}

func TestArmsTakeTurns(t *testing.T) {
	var turns []string
	p := testPlan(t, []Arm{fixedArm{"a", &turns}, fixedArm{"b", &turns}, fixedArm{"c", &turns}},
		&Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 1, N: 12, NOf: map[string]int{"c": 3}})
	result := execute(t, p)
	for i, want := range []int{12, 12, 3} {
		if got := result.Scenarios[i].N; got != want {
			t.Errorf("arm %d has n %d, want %d", i, got, want)
		}
	}
	// Each third of the run holds four turns of a and b and one of c, in an order that differs by round.
	for third := range 3 {
		counts := map[string]int{}
		for _, name := range turns[third*9 : third*9+9] {
			counts[name]++
		}
		if want := map[string]int{"a": 4, "b": 4, "c": 1}; !maps.Equal(counts, want) {
			t.Errorf("third %d has turns %v, want %v", third, counts, want)
		}
	}
	again := slices.Clone(turns)
	turns = nil
	execute(t, testPlan(t, p.Arms, p.Scenarios...))
	if !slices.Equal(again, turns) {
		t.Errorf("the same seed gave another order:\n%v\n%v", again, turns)
	}
}

func TestUnavailableArmIsSkippedWithAReason(t *testing.T) {
	p := testPlan(t, []Arm{&Crun{}, &QEMU{}}, &Latency{Scenario: ColdBoot, Mode: ModeClosed, Concurrency: 1, N: 1, Only: []string{ArmCrun}})
	result := execute(t, p)
	if !result.Complete || result.Scenarios[0].Skipped != "a container has no cold_boot" {
		t.Errorf("complete %v, scenarios %+v", result.Complete, result.Scenarios)
	}
}

func TestColdBootByCommand(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         int64
		class        string
	}{
		{"a measurement among other output", `echo booting; echo '{"cold_boot_ns":123000000}'`, 123_000_000, ""},
		{"no measurement", `echo nothing`, 0, "output"},
		{"a failure", `echo no kernel >&2; exit 3`, 0, "other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "cold")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			arm := &Server{Arm: ArmCella, Cold: []string{script}}
			result := execute(t, testPlan(t, []Arm{arm}, &Latency{Scenario: ColdBoot, Mode: ModeClosed, Concurrency: 1, N: 2}))
			s := result.Scenarios[0]
			if s.Max != test.want || (test.class != "" && s.Errors[test.class] != 2) || s.N != 2 {
				t.Errorf("n %d, max %d, errors %v", s.N, s.Max, s.Errors)
			}
		})
	}
}

func TestStartChild(t *testing.T) {
	script := filepath.Join(t.TempDir(), "serve")
	body := `#!/bin/sh
echo "starting"
echo '{"url":"http://127.0.0.1:1","apiKey":"e2b_1"}'
exec sleep 60
`
	if err := os.WriteFile(script, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	child, err := StartChild(t.Context(), []string{script}, 10*time.Second, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if child.URL != "http://127.0.0.1:1" || child.APIKey != "e2b_1" {
		t.Errorf("got %q and %q", child.URL, child.APIKey)
	}
	if err := child.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := StartChild(t.Context(), []string{"/bin/false"}, 10*time.Second, t.Output()); err == nil {
		t.Error("a server that ends at once gave no error")
	}
}
