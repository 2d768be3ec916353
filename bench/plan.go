package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Arms of the default plan.
const (
	ArmCella = "cella"
	ArmURL   = "url"
	ArmCrun  = "crun"
	ArmQEMU  = "qemu-microvm"
)

// FileBytes is the size of the file in file_write and file_read.
const FileBytes = 4096

// served are the arms behind the E2B API.
var served = []string{ArmCella, ArmURL}

// Sizes scale the default plan.
type Sizes struct {
	// Smoke makes a run of a few minutes that finds gross regressions and proves nothing finer.
	Smoke bool
	// N replaces the number of samples of every latency scenario if it is not 0.
	N int
}

// Scenarios is the default plan.
func Scenarios(size Sizes) []Scenario {
	n := func(full, smoke int) int {
		switch {
		case size.N > 0:
			return size.N
		case size.Smoke:
			return smoke
		}
		return full
	}
	// A cold boot costs seconds, many of them in an emulated machine: few samples, and the report says so.
	cold := n(5, 1)
	steps := []int{0, 10, 20, 30, 40}
	if size.Smoke {
		steps = []int{0, 5, 10}
	}
	return []Scenario{
		&Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 1, N: n(100, 20), Warmup: 3, Rest: time.Second,
			NOf: map[string]int{ArmQEMU: min(cold, 5)}, WarmupOf: map[string]int{ArmQEMU: 0}},
		&Latency{Scenario: CreateExec, Mode: ModeBurst, Concurrency: 50, N: n(200, 50), Warmup: 50, Rest: 10 * time.Second, Only: append(served, ArmCrun)},
		&Latency{Scenario: CreateExec, Mode: ModeClosed, Concurrency: 50, N: n(200, 50), Warmup: 10, Only: served},
		&Latency{Scenario: ColdBoot, Mode: ModeClosed, Concurrency: 1, N: cold, Rest: 10 * time.Second, Only: []string{ArmCella, ArmQEMU}},
		&Latency{Scenario: Exec, Mode: ModeClosed, Concurrency: 1, N: n(200, 20), Warmup: 3, Only: served},
		&Latency{Scenario: FileWrite, Mode: ModeClosed, Concurrency: 1, N: n(200, 20), Warmup: 3, Bytes: FileBytes, Only: served},
		&Latency{Scenario: FileRead, Mode: ModeClosed, Concurrency: 1, N: n(200, 20), Warmup: 3, Bytes: FileBytes, Only: served},
		&Dense{Steps: steps, Parallel: 5, Only: []string{ArmCella}, Settle: 5 * time.Second},
	}
}

// Select keeps the scenarios of the given names, all of them if there are none.
func Select(all []Scenario, names []string) ([]Scenario, error) {
	if len(names) == 0 {
		return all, nil
	}
	var out []Scenario
	known := map[string]bool{}
	for _, s := range all {
		known[s.Name()] = true
		if slices.Contains(names, s.Name()) {
			out = append(out, s)
		}
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("no scenario %q; there are %s", name, strings.Join(sortedNames(known), ", "))
		}
	}
	return out, nil
}

// SelectArms keeps the arms of the given names, all of them if there are none.
func SelectArms(all []Arm, names []string) ([]Arm, error) {
	if len(names) == 0 {
		return all, nil
	}
	var out []Arm
	known := map[string]bool{}
	for _, a := range all {
		known[a.Name()] = true
		if slices.Contains(names, a.Name()) {
			out = append(out, a)
		}
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("no arm %q; there are %s (url needs --peer-url)", name, strings.Join(sortedNames(known), ", "))
		}
	}
	return out, nil
}

func sortedNames(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
