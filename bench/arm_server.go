package bench

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/reports"
)

// The command of every create_exec and exec, and what it must print.
const (
	echoCommand = "echo hi"
	echoOutput  = "hi\n"
)

// sandboxTTL outlives any scenario; a sandbox that a crashed benchmark left behind ends by itself.
const sandboxTTL = 10 * time.Minute

// Server is an arm behind the E2B API: cella itself, or any server that speaks it.
type Server struct {
	// Arm is params.arm: "cella", or "url" for a peer.
	Arm      string
	Client   *e2b.Client
	Template string
	// Bytes is the size of the file in file_write and file_read.
	Bytes int
	// Cold is the command that cold-boots once and prints {"cold_boot_ns":N}; empty if there is none.
	Cold []string
	// Workers lists the VMM processes on this machine; nil for a server elsewhere.
	Workers func() ([]int, error)
}

// Name implements Arm.
func (s *Server) Name() string { return s.Arm }

// Work implements Arm.
func (s *Server) Work(ctx context.Context, scenario string) (Work, error) {
	if s.Client == nil && scenario != ColdBoot {
		return nil, unavailable("no server to measure: start one with --serve or name one with --url")
	}
	switch scenario {
	case CreateExec:
		return &serverWork{do: s.createExec}, nil
	case Density:
		if s.Workers == nil {
			return nil, unavailable("memory can only be read on the server's own machine")
		}
		return &densityWork{serverWork: serverWork{do: s.create}, workers: s.Workers}, nil
	case ColdBoot:
		return coldCommand(s.Cold)
	case Exec, FileWrite, FileRead:
		return s.inSandbox(ctx, scenario)
	}
	return nil, unavailable("the E2B API has no %s", scenario)
}

// serverWork is work through the API.
type serverWork struct {
	do    func(ctx context.Context) (Sample, error)
	close func() error
}

func (w *serverWork) Do(ctx context.Context) (Sample, error) { return w.do(ctx) }
func (w *serverWork) Variant() string                        { return "" }
func (w *serverWork) Close() error {
	if w.close == nil {
		return nil
	}
	return w.close()
}

// create makes a sandbox; its phases are what the server reports, and api for the rest of the request.
func (s *Server) create(ctx context.Context) (Sample, error) {
	_, sample, err := s.timedCreate(ctx)
	return sample, err
}

func (s *Server) timedCreate(ctx context.Context) (*e2b.Sandbox, Sample, error) {
	start := time.Now()
	sb, err := s.Client.Create(ctx, s.Template, sandboxTTL)
	if err != nil {
		return nil, Sample{}, err
	}
	took := time.Since(start)
	sample := Sample{Total: took, Phases: createPhases(sb.Phases, took)}
	sample.Release = func() error { return s.kill(sb) }
	return sb, sample, nil
}

// createPhases turns the server's account of a create into phases that sum to what the client saw. An
// account that exceeds it is not believed.
func createPhases(server []e2b.Phase, took time.Duration) []reports.PhaseSample {
	phases, rest := make([]reports.PhaseSample, 0, len(server)+2), took
	for _, p := range server {
		phases = append(phases, reports.PhaseSample{Name: p.Name, Duration: p.Duration})
		rest -= p.Duration
	}
	if rest < 0 {
		return []reports.PhaseSample{{Name: "api", Duration: took}}
	}
	return append(phases, reports.PhaseSample{Name: "api", Duration: rest})
}

// createExec is request to create → first command's exit code back.
func (s *Server) createExec(ctx context.Context) (Sample, error) {
	sb, sample, err := s.timedCreate(ctx)
	if err != nil {
		return sample, err
	}
	took, finish, err := s.echo(ctx, sb)
	if err != nil {
		return sample, err
	}
	sample.Total += took
	sample.Phases = append(sample.Phases, reports.PhaseSample{Name: "exec", Duration: took})
	kill := sample.Release
	sample.Release = func() error { finish(); return kill() }
	return sample, nil
}

// echo runs the small command and checks what it printed.
func (s *Server) echo(ctx context.Context, sb *e2b.Sandbox) (took time.Duration, finish func(), err error) {
	start := time.Now()
	out, finish, err := s.Client.Exec(ctx, sb, echoCommand)
	took = time.Since(start)
	if err != nil {
		return took, nil, err
	}
	if out.ExitCode != 0 || string(out.Stdout) != echoOutput {
		finish()
		return took, nil, fmt.Errorf("%w: %q exited with %d, printed %q and %q", errOutput, echoCommand, out.ExitCode, out.Stdout, out.Stderr)
	}
	return took, finish, nil
}

// kill has a deadline of its own, so that sandboxes are killed after an interrupt too.
func (s *Server) kill(sb *e2b.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.Client.Kill(ctx, sb)
}

// inSandbox prepares work that one running sandbox does again and again.
func (s *Server) inSandbox(ctx context.Context, scenario string) (Work, error) {
	sb, err := s.Client.Create(ctx, s.Template, sandboxTTL)
	if err != nil {
		return nil, err
	}
	work := &serverWork{close: func() error { return s.kill(sb) }}
	const path = "/tmp/cella-bench"
	data := bytes.Repeat([]byte("x"), s.Bytes)
	switch scenario {
	case Exec:
		work.do = func(ctx context.Context) (Sample, error) {
			took, finish, err := s.echo(ctx, sb)
			if err == nil {
				finish()
			}
			return Sample{Total: took}, err
		}
	case FileWrite:
		work.do = func(ctx context.Context) (Sample, error) {
			start := time.Now()
			err := s.Client.WriteFile(ctx, sb, path, data)
			return Sample{Total: time.Since(start)}, err
		}
	case FileRead:
		if err := s.Client.WriteFile(ctx, sb, path, data); err != nil {
			_ = work.Close() // the first error is the one to report
			return nil, err
		}
		work.do = func(ctx context.Context) (Sample, error) { return s.readFile(ctx, sb, path, data) }
	}
	return work, nil
}

func (s *Server) readFile(ctx context.Context, sb *e2b.Sandbox, path string, want []byte) (Sample, error) {
	start := time.Now()
	got, err := s.Client.ReadFile(ctx, sb, path)
	took := time.Since(start)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%w: %s has %d bytes that differ from the %d written", errOutput, path, len(got), len(want))
	}
	return Sample{Total: took}, err
}
