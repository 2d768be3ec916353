package vmm_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/nano"
)

// BenchmarkRestore takes a nano guest from its saved state to its first exit in another machine, and reports
// percentiles of each phase in microseconds. "miss" is a machine that must be made first; everything after
// it is what a machine from a pool needs.
func BenchmarkRestore(b *testing.B) {
	for _, vcpus := range []int{1, 2} {
		b.Run(fmt.Sprintf("vcpus=%d", vcpus), func(b *testing.B) { benchmarkRestore(b, vcpus) })
	}
}

func benchmarkRestore(b *testing.B, vcpus int) {
	ram, state := savedPulse(b, vcpus)
	phases := []string{"miss", "map", "decode", "restore", "first-exit", "hit-total", "close"}
	samples := make(map[string][]time.Duration)
	for b.Loop() {
		for i, d := range restoreOnce(b, vcpus, ram, state) {
			samples[phases[i]] = append(samples[phases[i]], d)
		}
	}
	for _, p := range phases {
		s := samples[p]
		slices.Sort(s)
		b.ReportMetric(float64(s[len(s)/2].Nanoseconds())/1e3, p+"-p50-µs")
		b.ReportMetric(float64(s[len(s)*99/100].Nanoseconds())/1e3, p+"-p99-µs")
	}
}

// restoreOnce returns how long each phase took.
func restoreOnce(b *testing.B, vcpus, ram int, state []byte) [7]time.Duration {
	at := []time.Time{time.Now()}
	step := func(err error) {
		must(b, err)
		at = append(at, time.Now())
	}
	m, err := vmm.New(vmm.Shape{VCPUs: vcpus, MemoryBytes: nano.MemoryBytes})
	first := &firstWrite{at: make(chan time.Time, 1)}
	m.SetConsole(first)
	step(err)
	step(m.MapMemory(ram, true))
	var s vmm.State
	step(s.UnmarshalBinary(state))
	step(m.Restore(&s))
	must(b, m.Start())
	at = append(at, <-first.at)
	closing := time.Now()
	must(b, m.Close())
	return [7]time.Duration{
		at[1].Sub(at[0]), at[2].Sub(at[1]), at[3].Sub(at[2]), at[4].Sub(at[3]), at[5].Sub(at[4]),
		at[5].Sub(at[1]), time.Since(closing),
	}
}

// firstWrite sends the time of its first write.
type firstWrite struct{ at chan time.Time }

func (w *firstWrite) Write(p []byte) (int, error) {
	select {
	case w.at <- time.Now():
	default:
	}
	return len(p), nil
}

func savedPulse(b *testing.B, vcpus int) (ram int, state []byte) {
	ram = memfd(b)
	m := newMachine(b, vcpus)
	out := newLineBuffer()
	m.SetConsole(out)
	must(b, m.MapMemory(ram, false))
	must(b, nano.Pulse.Load(m))
	must(b, m.Start())
	out.awaitLines(b, 3)
	must(b, m.Pause())
	return ram, save(b, m)
}
