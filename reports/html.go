package reports

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
)

//go:embed page.html.tmpl
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ns":     FormatNS,
	"mean":   func(v float64) string { return FormatNS(int64(v)) },
	"value":  formatValue,
	"bars":   bars,
	"lines":  spectrum,
	"phases": waterfall,
	"dense":  densityChart,
	"class":  armClass,
	"load":   Params.load,
	"p":      func(s *Scenario, key string) string { return s.percentile(key) },
	"failed": func(s *Scenario) string { return s.errors() },
	"share":  func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
}).Parse(pageSource))

// pageData is what the template shows.
type pageData struct {
	*Result
	Facts    []fact
	Verdicts []Verdict
	Caveats  []string
	Keys     []string
	// Groups hold the arms of one scenario under one load.
	Groups []group
	// Phased, Dense and All are scenarios with phases, with a density curve, and every one.
	Phased, Dense, All []*Scenario
}

type group struct {
	Title string
	Arms  []*Scenario
}

// HTML renders a result as one page that needs nothing else: no network, no script.
func HTML(r *Result) ([]byte, error) {
	data := pageData{Result: r, Facts: facts(r), Verdicts: Verdicts(r), Caveats: Caveats(r), Keys: PercentileKeys}
	index := map[string]int{}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		data.All = append(data.All, s)
		if len(s.Phases) > 0 && s.Mean > 0 {
			data.Phased = append(data.Phased, s)
		}
		if len(s.Curves["used_bytes"]) > 1 {
			data.Dense = append(data.Dense, s)
		}
		if s.HdrV2 == "" {
			continue
		}
		title := s.Name + ", " + s.Params.load()
		at, ok := index[title]
		if !ok {
			at = len(data.Groups)
			index[title] = at
			data.Groups = append(data.Groups, group{Title: title})
		}
		data.Groups[at].Arms = append(data.Groups[at].Arms, s)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("render report.html: %w", err)
	}
	return b.Bytes(), nil
}
