package reports

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteAll writes result.json and everything rendered from it into dir: report.md, report.html and one
// .hgrm for each histogram. The result is written first: a failure to render loses no figure.
func WriteAll(dir string, r *Result) error {
	if err := r.Save(dir); err != nil {
		return err
	}
	page, err := HTML(r)
	if err != nil {
		return err
	}
	err = errors.Join(
		writeFile(filepath.Join(dir, "report.md"), []byte(Markdown(r))),
		writeFile(filepath.Join(dir, "report.html"), page),
	)
	stale, globErr := filepath.Glob(filepath.Join(dir, "*.hgrm"))
	err = errors.Join(err, globErr)
	for _, name := range stale {
		err = errors.Join(err, os.Remove(name))
	}
	for i := range r.Scenarios {
		err = errors.Join(err, writeHgrm(dir, &r.Scenarios[i]))
	}
	return err
}

// writeHgrm writes the percentile distribution in milliseconds, as HdrHistogram's plotter reads it.
func writeHgrm(dir string, s *Scenario) error {
	h, err := s.Histogram()
	if h == nil {
		return err
	}
	var b bytes.Buffer
	if _, err := h.PercentilesPrint(&b, 5, 1e6); err != nil {
		return fmt.Errorf("print the histogram of %s: %w", s.Name, err)
	}
	return writeFile(filepath.Join(dir, s.FileName()+".hgrm"), b.Bytes())
}

// FileName is a name for the scenario's files, unique within a result.
func (s *Scenario) FileName() string {
	p := s.Params
	parts := []string{s.Name, p.Arm}
	if p.Mode != "" {
		parts = append(parts, fmt.Sprintf("%s%d", p.Mode, p.Concurrency))
	}
	if p.RatePerS > 0 {
		parts = append(parts, fmt.Sprintf("%gps", p.RatePerS))
	}
	if p.Bytes > 0 {
		parts = append(parts, fmt.Sprintf("%dB", p.Bytes))
	}
	if p.Rules > 0 {
		parts = append(parts, fmt.Sprintf("%drules", p.Rules))
	}
	keep := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '_'
	}
	return strings.Map(keep, strings.Join(parts, "-"))
}
