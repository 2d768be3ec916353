package profiles

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/pprof/profile"
)

// Label marks every sample of p with key=value, for example process=gateway or phase=restore. Labels
// survive Merge, so that one merged profile can be split again (pprof -tagfocus).
func Label(p *profile.Profile, key, value string) {
	for _, s := range p.Sample {
		if s.Label == nil {
			s.Label = map[string][]string{}
		}
		s.Label[key] = []string{value}
	}
}

// Merge adds profiles of one kind up.
func Merge(parts ...*profile.Profile) (*profile.Profile, error) {
	if len(parts) == 0 {
		return nil, errors.New("merge profiles: there are none")
	}
	out, err := profile.Merge(parts)
	if err != nil {
		return nil, fmt.Errorf("merge profiles: %w", err)
	}
	return out, nil
}

// Diff is head minus base: what became more is positive. Neither is changed.
func Diff(base, head *profile.Profile) (*profile.Profile, error) {
	negative := base.Copy()
	negative.ScaleN(minus(len(base.SampleType)))
	out, err := profile.Merge([]*profile.Profile{negative, head})
	if err != nil {
		return nil, fmt.Errorf("diff profiles: %w", err)
	}
	return out, nil
}

func minus(n int) []float64 {
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = -1
	}
	return ratios
}

// Total sums one sample type of a profile by its name, for example "cpu"; false if it has none.
func Total(p *profile.Profile, sampleType string) (int64, bool) {
	for i, t := range p.SampleType {
		if t.Type != sampleType {
			continue
		}
		var sum int64
		for _, s := range p.Sample {
			sum += s.Value[i]
		}
		return sum, true
	}
	return 0, false
}

// Write stores p, compressed, as `go tool pprof` reads it. The file is there whole or not at all.
func Write(path string, p *profile.Profile) error {
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("write profile %s: %w", path, err)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		return fmt.Errorf("encode profile %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of profile %s: %w", path, err)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("publish profile: %w", err)
	}
	return nil
}
