package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// coldWork runs a command that cold-boots once and prints its own measurement, since only the VMM knows
// when it started and when the agent answered.
type coldWork struct{ command []string }

func coldCommand(command []string) (Work, error) {
	if len(command) == 0 {
		return nil, unavailable("no command to cold-boot with; give one with --cold")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, unavailable("%s cannot be run: %v", command[0], err)
	}
	return &coldWork{command: command}, nil
}

func (w *coldWork) Variant() string { return "" }
func (w *coldWork) Close() error    { return nil }

func (w *coldWork) Do(ctx context.Context) (Sample, error) {
	// The measurement is on standard error beside the guest's own output on standard output.
	output, err := exec.CommandContext(ctx, w.command[0], w.command[1:]...).CombinedOutput()
	if err != nil {
		return Sample{}, fmt.Errorf("%s: %w: %s", w.command[0], err, lastLine(output))
	}
	return parseCold(output)
}

// parseCold finds {"cold_boot_ns":N} among the lines of a command's output.
func parseCold(output []byte) (Sample, error) {
	for line := range bytes.Lines(output) {
		var timing struct {
			ColdBootNS int64 `json:"cold_boot_ns"`
		}
		if json.Unmarshal(line, &timing) == nil && timing.ColdBootNS > 0 {
			return Sample{Total: time.Duration(timing.ColdBootNS)}, nil
		}
	}
	return Sample{}, fmt.Errorf("%w: no line has cold_boot_ns", errOutput)
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}
