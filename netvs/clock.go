package netvs

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is the clock of the programs, CLOCK_MONOTONIC (bpf_ktime_get_ns).
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("CLOCK_MONOTONIC: " + err.Error()) // it exists on every Linux
	}
	return time.Duration(ts.Nano())
}
