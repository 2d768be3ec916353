package e2b

import (
	"strconv"
	"strings"
	"time"
)

// Phase is one entry of a Server-Timing header.
type Phase struct {
	Name     string
	Duration time.Duration
}

// parseServerTiming reads `claim;dur=0.12, disk;dur=0.034`: durations are decimal milliseconds (W3C Server
// Timing §3). Entries without a sound duration are left out, since the server may be any.
func parseServerTiming(headers []string) []Phase {
	var phases []Phase
	for entry := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		name, params, _ := strings.Cut(entry, ";")
		name = strings.TrimSpace(name)
		for param := range strings.SplitSeq(params, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
			ms, err := strconv.ParseFloat(strings.Trim(value, `"`), 64)
			if name == "" || key != "dur" || err != nil || !(ms >= 0 && ms < 1e9) {
				continue
			}
			phases = append(phases, Phase{Name: name, Duration: time.Duration(ms * float64(time.Millisecond))})
		}
	}
	return phases
}
