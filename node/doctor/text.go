package doctor

import (
	"fmt"
	"io"
)

// WriteText prints the checks for people: a line each, its meaning and the remedy below it where there is one.
func (r Report) WriteText(w io.Writer) error {
	for _, c := range r.Checks {
		if _, err := fmt.Fprintf(w, "%-4s  %-14s  %s\n", c.Status, c.Name, c.Found); err != nil {
			return err
		}
		for _, note := range []string{c.Means, c.Do} {
			if note == "" {
				continue
			}
			if _, err := fmt.Fprintf(w, "%22s→ %s\n", "", note); err != nil {
				return err
			}
		}
	}
	return nil
}

// Verdict is the report in one line: ready, or the first required check that failed and what to do. What decides
// about the machine comes before what a set-up can mend.
func (r Report) Verdict() string {
	if r.Ready {
		return "ready: `cella serve` works here"
	}
	for _, c := range r.Checks {
		if c.Required && c.Status == Fail {
			return fmt.Sprintf("not ready: %s (%s); %s", c.Means, c.Found, c.Do)
		}
	}
	return "not ready"
}
