package reports

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// FormatNS writes nanoseconds with three significant digits and the unit that suits.
func FormatNS(ns int64) string {
	v := float64(ns)
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		// 999.5 would be written 1000 with three digits, and belongs to the next unit.
		if math.Abs(v) >= unit.size*0.9995 {
			return digits(v/unit.size) + " " + unit.name
		}
	}
	return fmt.Sprintf("%d ns", ns)
}

// FormatBytes writes bytes in decimal units with three significant digits.
func FormatBytes(b float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if math.Abs(b) >= unit.size*0.9995 {
			return digits(b/unit.size) + " " + unit.name
		}
	}
	return fmt.Sprintf("%.0f B", b)
}

// tickNS and tickBytes write round values without the zeros that three digits would add.
func tickNS(ns float64) string   { return trimZeros(FormatNS(int64(math.Round(ns)))) }
func tickBytes(b float64) string { return trimZeros(FormatBytes(b)) }

func trimZeros(s string) string {
	number, unit, _ := strings.Cut(s, " ")
	if number == "0" {
		return number
	}
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

func digits(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case abs >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// percentile writes a stated percentile, or a dash.
func (s *Scenario) percentile(key string) string {
	if v, ok := s.Quantile(key); ok {
		return FormatNS(v)
	}
	return "–"
}

// load says how a scenario was loaded: "one at a time", "50 at once", "50 in flight", "20 a second".
func (p Params) load() string {
	var parts []string
	switch {
	case p.Mode == "burst":
		parts = append(parts, fmt.Sprintf("%d at once", p.Concurrency))
	case p.Mode == "open":
		parts = append(parts, fmt.Sprintf("%.3g a second", p.RatePerS))
	case p.Mode == "closed" && p.Concurrency == 1:
		parts = append(parts, "one at a time")
	case p.Concurrency > 0 && p.Sandboxes == 0:
		parts = append(parts, fmt.Sprintf("%d in flight", p.Concurrency))
	}
	if p.Sandboxes > 0 {
		parts = append(parts, fmt.Sprintf("up to %d sandboxes", p.Sandboxes))
	}
	if p.Bytes > 0 {
		parts = append(parts, FormatBytes(float64(p.Bytes)))
	}
	if p.RestNS > 0 {
		parts = append(parts, fmt.Sprintf("%v apart", time.Duration(p.RestNS)))
	}
	if p.Rules > 0 {
		parts = append(parts, fmt.Sprintf("%d rules", p.Rules))
	}
	return strings.Join(parts, ", ")
}

// errors writes failures by class, or "0".
func (s *Scenario) errors() string {
	if s.Failed() == 0 {
		return "0"
	}
	var parts []string
	for _, class := range sortedKeys(s.Errors) {
		parts = append(parts, fmt.Sprintf("%d %s", s.Errors[class], class))
	}
	return strings.Join(parts, ", ")
}
