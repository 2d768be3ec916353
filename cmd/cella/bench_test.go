package main

import "testing"

func TestBenchCommandLineHidesKeys(t *testing.T) {
	args := []string{"/x/cella", "bench", "--api-key", "e2b_secret", "--peer-api-key=e2b_other", "--cold", "run it", "--n", "5"}
	want := "cella bench --api-key … --peer-api-key=… --cold 'run it' --n 5 --seed 7"
	if got := benchCommandLine(args, 7); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
