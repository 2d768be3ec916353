package reports

import (
	"fmt"
	"strings"
)

// Markdown renders a result so that it fits a pull request's comment.
func Markdown(r *Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark %s\n\n", r.Run.ID)
	if !r.Complete {
		fmt.Fprintf(&b, "**This result is not complete.**\n\n")
		for _, reason := range r.Reasons {
			fmt.Fprintf(&b, "- %s\n", cell(reason))
		}
		b.WriteString("\n")
	}
	markdownRun(&b, r)
	markdownVerdicts(&b, r)
	markdownLatencies(&b, r)
	markdownPhases(&b, r)
	markdownValues(&b, r)
	b.WriteString("\n## What is not claimed\n\n")
	for _, c := range Caveats(r) {
		fmt.Fprintf(&b, "- %s\n", cell(c))
	}
	return b.String()
}

func markdownRun(b *strings.Builder, r *Result) {
	fmt.Fprintf(b, "| | |\n| --- | --- |\n")
	for _, f := range facts(r) {
		fmt.Fprintf(b, "| %s | %s |\n", f.Name, cell(f.Value))
	}
}

func markdownVerdicts(b *strings.Builder, r *Result) {
	b.WriteString("\n## Goals\n\n| what | goal | measured | n | failed | |\n| --- | --- | --- | --: | --: | --- |\n")
	for _, v := range Verdicts(r) {
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %s |\n", v.What, v.Goal, cell(v.Measured), v.N, v.Failed, v.Status)
	}
}

func markdownLatencies(b *strings.Builder, r *Result) {
	b.WriteString("\n## Latencies\n\n| scenario | load | arm | n | warm-up | failed | p50 | p90 | p95 | p99 | p99.9 | max |\n" +
		"| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if s.HdrV2 == "" && s.Skipped == "" && s.P == nil {
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %s |", s.Name, s.Params.load(), s.Params.Arm)
		if s.Skipped != "" {
			b.WriteString(" skipped | | | | | | | | |\n")
			continue
		}
		fmt.Fprintf(b, " %d | %d | %s |", s.N, s.Warmup, s.errors())
		for _, key := range PercentileKeys {
			fmt.Fprintf(b, " %s |", s.percentile(key))
		}
		fmt.Fprintf(b, " %s |\n", FormatNS(s.Max))
	}
}

func markdownPhases(b *strings.Builder, r *Result) {
	title := "\n## Phases (means, which sum to the mean of the total)\n\n"
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if len(s.Phases) == 0 {
			continue
		}
		b.WriteString(title)
		title = ""
		fmt.Fprintf(b, "- %s, %s, %s: ", s.Name, s.Params.load(), s.Params.Arm)
		var parts []string
		for _, name := range s.OrderedPhases() {
			parts = append(parts, fmt.Sprintf("%s %s", name, FormatNS(int64(s.Phases[name].Mean))))
		}
		fmt.Fprintf(b, "%s = %s\n", cell(strings.Join(parts, " + ")), FormatNS(int64(s.Mean)))
	}
}

func markdownValues(b *strings.Builder, r *Result) {
	title := "\n## Values\n\n"
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		for _, name := range sortedKeys(s.Values) {
			b.WriteString(title)
			title = ""
			fmt.Fprintf(b, "- %s of %s (%s): %s %s\n", s.Name, s.Params.Arm, s.Params.load(), name, formatValue(name, s.Values[name]))
		}
	}
}

func formatValue(name string, v float64) string {
	if strings.HasSuffix(name, "_bytes") {
		return FormatBytes(v)
	}
	return fmt.Sprintf("%.4g", v)
}

// cell keeps text of errors and machines from breaking a table or a line.
func cell(s string) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r", " "), "\n", " ")
	return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "<", "&lt;")
}

// fact is one line of what a reader needs to repeat a run.
type fact struct{ Name, Value string }

func facts(r *Result) []fact {
	commit := r.Run.Git
	if r.Run.Dirty {
		commit += " with uncommitted changes"
	}
	host := fmt.Sprintf("%s: %s × %d, %d MiB, Linux %s, %s", r.Env.Kind, r.Env.CPU.Model, r.Env.CPU.Count, r.Env.MemoryMiB, r.Env.Kernel, r.Env.Filesystem)
	if r.Env.CPU.Virtual {
		host += ", under a hypervisor"
	}
	return []fact{
		{"command", r.Run.Cmd},
		{"commit", commit},
		{"clock", r.Run.Clock},
		{"host", host},
		{"host class", r.Env.Class},
		{"load before", fmt.Sprintf("%.2f", r.Env.Load1)},
		{"started", r.Run.Started.UTC().Format("2006-01-02 15:04:05 UTC")},
		{"took", FormatNS(r.Run.ElapsedNS)},
		{"seed", fmt.Sprint(r.Run.Seed)},
	}
}
