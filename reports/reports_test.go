package reports

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// scenario makes one of n samples of from, from+step, …, with failures.
func scenario(t *testing.T, name string, p Params, n, failed int, from, step time.Duration) Scenario {
	t.Helper()
	series := NewSeries()
	for i := range n {
		total := from + time.Duration(i)*step
		half := total / 2
		series.Record(total, []PhaseSample{{"create", half}, {"exec", total - half}})
	}
	for range failed {
		series.RecordError("timeout")
	}
	p.Clock = ClockHardware
	out, err := series.Scenario(name, p, 3)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func closedOne(arm string) Params { return Params{Arm: arm, Mode: "closed", Concurrency: 1} }

func result(scenarios ...Scenario) *Result {
	return &Result{
		Schema: SchemaVersion, Complete: true,
		Run:       Run{ID: "r1", Git: "0123456789abcdef", Cmd: "cella bench", Clock: ClockHardware, Started: time.Unix(0, 0).UTC(), Seed: 7},
		Env:       Env{Class: "sha256:aa", Kind: "hardware", Kernel: "6.12"},
		Scenarios: scenarios,
	}
}

func TestPercentilesAreStatedOnlyWithTenBeyond(t *testing.T) {
	tests := []struct {
		n, failed int
		stated    string
	}{
		{1, 0, "50"}, {19, 0, "50"}, {99, 0, "50"}, {100, 0, "50 90"}, {199, 0, "50 90"}, {200, 0, "50 90 95"},
		{999, 0, "50 90 95"}, {1000, 0, "50 90 95 99"}, {10_000, 0, "50 90 95 99 99.9"},
		// Failures are slower than any success: a percentile that falls among them has no value.
		{90, 10, "50 90"}, {89, 11, "50"}, {50, 50, "50"}, {49, 51, ""}, {0, 10, ""},
	}
	for _, test := range tests {
		s := scenario(t, "x", closedOne("a"), test.n, test.failed, time.Millisecond, time.Microsecond)
		var stated []string
		for _, key := range PercentileKeys {
			if _, ok := s.Quantile(key); ok {
				stated = append(stated, key)
			}
		}
		if got := strings.Join(stated, " "); got != test.stated {
			t.Errorf("n %d with %d failed: states %q, want %q", test.n, test.failed, got, test.stated)
		}
		if s.N != test.n+test.failed {
			t.Errorf("n is %d, want %d", s.N, test.n+test.failed)
		}
	}
}

func TestSeriesFigures(t *testing.T) {
	s := scenario(t, "x", closedOne("a"), 200, 0, 10*time.Millisecond, 100*time.Microsecond)
	if s.Min != 10_000_000 || s.Max != 29_900_000 || s.Mean != 19_950_000 {
		t.Errorf("min %d, max %d, mean %.0f", s.Min, s.Max, s.Mean)
	}
	for key, want := range map[string]int64{"50": 19_900_000, "90": 27_900_000, "95": 28_900_000} {
		got, ok := s.Quantile(key)
		if diff := got - want; !ok || diff < 0 || diff > want/1000 {
			t.Errorf("p%s is %d, want %d and at most a thousandth above", key, got, want)
		}
	}
	if ci := s.CI95P50; ci == nil || ci[0] > 19_900_000 || ci[1] < 19_900_000 || ci[1]-ci[0] > 4_000_000 {
		t.Errorf("interval of the median is %v", ci)
	}
	if got := s.Phases["create"].Mean + s.Phases["exec"].Mean; got != s.Mean {
		t.Errorf("phases sum to %.0f, want %.0f", got, s.Mean)
	}
}

func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	want := result(scenario(t, "create_exec", closedOne("cella"), 100, 2, time.Millisecond, time.Microsecond),
		Scenario{Name: "density", Params: Params{Arm: "cella", Clock: ClockHardware}, N: 40, Unit: "ns", Errors: map[string]int{}, Values: map[string]float64{"slope_bytes": 4e6}})
	if err := WriteAll(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if string(a) != string(b) {
		t.Errorf("read back\n%s\nwant\n%s", b, a)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), "create_exec-cella-closed1.hgrm report.html report.md result.json"; got != want {
		t.Errorf("directory holds %q, want %q", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := result(scenario(t, "create_exec", closedOne("cella"), 200, 0, time.Millisecond, time.Microsecond))
	tests := []struct {
		name  string
		spoil func(doc map[string]any)
		want  string
	}{
		{"another schema", func(d map[string]any) { d["schema"] = 2 }, "schema 2"},
		{"an unknown field", func(d map[string]any) { d["extra"] = 1 }, `unknown field "extra"`},
		{"an unknown clock", func(d map[string]any) { d["run"].(map[string]any)["clock"] = "moon" }, `run.clock is "moon"`},
		{"n without its samples", func(d map[string]any) { first(d)["n"] = 201 }, "n is 201, but the histogram holds 200 and errors 0"},
		{"a percentile that was edited", func(d map[string]any) { first(d)["p"].(map[string]any)["50"] = 5 }, "p.50 is 5"},
		{"a percentile that n does not allow", func(d map[string]any) { first(d)["p"].(map[string]any)["99"] = 1200000 }, "p.99 is 1200000"},
		{"phases that do not add up", func(d map[string]any) { first(d)["mean"] = 9e6 }, "phases' means sum to"},
		{"complete and yet not", func(d map[string]any) { d["reasons"] = []string{"x"} }, "complete, and yet"},
		{"a broken histogram", func(d map[string]any) { first(d)["hdr_v2"] = "HISTxx" }, "decode hdr_v2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data, err := json.Marshal(good)
			if err != nil {
				t.Fatal(err)
			}
			var doc map[string]any
			if err := json.Unmarshal(data, &doc); err != nil {
				t.Fatal(err)
			}
			test.spoil(doc)
			path := filepath.Join(t.TempDir(), "result.json")
			data, err = json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Load(path)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func first(doc map[string]any) map[string]any {
	return doc["scenarios"].([]any)[0].(map[string]any)
}

func TestVerdicts(t *testing.T) {
	burst := func(arm string) Params { return Params{Arm: arm, Mode: "burst", Concurrency: 50} }
	skipped := Scenario{Name: "cold_boot", Params: Params{Arm: "qemu-microvm", Clock: ClockHardware}, Skipped: "no /dev/kvm"}
	r := result(
		scenario(t, "create_exec", closedOne("cella"), 200, 0, 20*time.Millisecond, 0),
		scenario(t, "create_exec", closedOne("crun"), 200, 0, 40*time.Millisecond, 0),
		scenario(t, "create_exec", burst("cella"), 200, 0, 50*time.Millisecond, time.Millisecond),
		scenario(t, "cold_boot", closedOne("cella"), 5, 0, 300*time.Millisecond, 0),
		skipped,
	)
	r.Scenarios[4].Unit = "ns"
	want := []struct {
		status   Status
		measured string
	}{
		{Met, "20.0 ms against 40.0 ms: 0.50 ×"},
		{NotMeasured, "20.0 ms; qemu-microvm was skipped: no /dev/kvm"},
		{Met, "20.0 ms"},
		{Met, "239 ms against 149 ms: 1.60 ×"},
		{NotMeasured, "239 ms; crun was not in this run"},
		{Missed, "239 ms"},
		{NotMeasured, "300 ms; qemu-microvm was skipped: no /dev/kvm"},
		{NotMeasured, "cella was not in this run"},
		{NotMeasured, "cella was not in this run"},
	}
	for i, v := range Verdicts(r) {
		if v.Status != want[i].status || v.Measured != want[i].measured {
			t.Errorf("%s, %s: %s (%s), want %s (%s)", v.What, v.Goal, v.Status, v.Measured, want[i].status, want[i].measured)
		}
	}
}

func TestHardwareGoalsNeedHardware(t *testing.T) {
	r := result(scenario(t, "create_exec", closedOne("cella"), 200, 0, 20*time.Millisecond, 0))
	r.Run.Clock, r.Scenarios[0].Params.Clock = ClockInstruction, ClockInstruction
	v := Verdicts(r)[2]
	if v.Status != NotMeasured || v.Measured != "20.0 ms on the instruction clock, which is not a hardware millisecond" {
		t.Errorf("got %s: %s", v.Status, v.Measured)
	}
}

func TestReportsSurviveHostileText(t *testing.T) {
	s := scenario(t, "create_exec", closedOne("cella"), 30, 0, time.Millisecond, time.Microsecond)
	s.Partial = "error: <script>alert(1)</script> | x\ny"
	r := result(s)
	r.Complete, r.Reasons = false, []string{s.Partial}
	page, err := HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"report.html": string(page), "report.md": Markdown(r)} {
		if strings.Contains(text, "<script>") {
			t.Errorf("%s holds the script", name)
		}
		if !strings.Contains(text, "This result is not complete.") {
			t.Errorf("%s does not say that it is not complete", name)
		}
	}
	for _, outside := range []string{"http://", "https://", "src=", "@import"} {
		if strings.Contains(string(page), outside) {
			t.Errorf("report.html refers to something outside: %s", outside)
		}
	}
}

func TestCompare(t *testing.T) {
	of := func(from time.Duration, n, failed int) *Result {
		return result(scenario(t, "create_exec", closedOne("cella"), n, failed, from, time.Microsecond))
	}
	tests := []struct {
		name       string
		base, head *Result
		want       Change
	}{
		{"the same", of(10*time.Millisecond, 100, 0), of(10*time.Millisecond, 100, 0), Same},
		{"3 % slower", of(10*time.Millisecond, 100, 0), of(10300*time.Microsecond, 100, 0), Slower},
		{"3 % faster", of(10300*time.Microsecond, 100, 0), of(10*time.Millisecond, 100, 0), Faster},
		{"below the threshold", of(10*time.Millisecond, 100, 0), of(10100*time.Microsecond, 100, 0), Same},
		{"too few samples", of(10*time.Millisecond, 100, 0), of(20*time.Millisecond, 4, 0), Unclear},
		{"fast because it fails", of(10*time.Millisecond, 100, 0), of(5*time.Millisecond, 40, 60), Slower},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := Compare(test.base, test.head, 0.02)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Lines) != 1 || c.Lines[0].Change != test.want {
				t.Errorf("got %+v, want %s", c.Lines, test.want)
			}
		})
	}
}

func TestCompareRefuses(t *testing.T) {
	base := result(scenario(t, "create_exec", closedOne("cella"), 10, 0, time.Millisecond, 0))
	clock, class, nothing := *base, *base, *base
	clock.Run.Clock = ClockInstruction
	class.Env.Class = "sha256:bb"
	nothing.Scenarios = nil
	for name, head := range map[string]*Result{"another clock": &clock, "another host": &class, "nothing in common": &nothing} {
		if _, err := Compare(base, head, 0.02); !errors.Is(err, ErrNotComparable) {
			t.Errorf("%s: got %v, want ErrNotComparable", name, err)
		}
	}
}

func TestFingerprint(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	root := fstest.MapFS{
		"proc/cpuinfo": file("processor\t: 0\nmodel name\t: A CPU\nmicrocode\t: 0x1\nflags\t\t: b a hypervisor\n\n" +
			"processor\t: 1\nmodel name\t: A CPU\nflags\t\t: b a hypervisor\n"),
		"proc/meminfo":              file("MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
		"proc/sys/kernel/osrelease": file("6.12.1\n"),
		"proc/cmdline":              file("quiet CELLA_LAB_DISKS=3\n"),
		"proc/loadavg":              file("0.50 0.40 0.30 1/100 999\n"),
		"sys/devices/system/cpu/vulnerabilities/meltdown":      file("Not affected\n"),
		"sys/module/kvm/parameters/halt_poll_ns":               file("0\n"),
		"sys/kernel/mm/transparent_hugepage/enabled":           file("always [madvise] never\n"),
		"sys/module/kvm_amd/parameters/npt":                    file("Y\n"),
		"sys/devices/system/cpu/vulnerabilities/spectre_v2":    file("Mitigation\n"),
		"sys/module/kvm_intel/parameters/unrelated/not_a_file": file(""),
	}
	env := collect(root, true)
	if env.Kind != "lab" || env.CPU.Model != "A CPU" || env.CPU.Count != 2 || !env.CPU.Virtual || env.Kernel != "6.12.1" || env.Cmdline != "quiet" ||
		env.MemoryMiB != 24000 || env.THP != "madvise" || env.Load1 != 0.5 ||
		env.KVM["kvm.halt_poll_ns"] != "0" || env.KVM["kvm_amd.npt"] != "Y" || env.Mitigation["meltdown"] != "Not affected" {
		t.Errorf("got %+v", env)
	}
	busier := env
	busier.Load1 = 9
	if env.class() != busier.class() {
		t.Error("load changes the class")
	}
	other := env
	other.Kernel = "6.13"
	if env.class() == other.class() {
		t.Error("another kernel does not change the class")
	}
}

func TestFormat(t *testing.T) {
	for ns, want := range map[int64]string{0: "0 ns", 999: "999 ns", 1500: "1.50 µs", 42_400_000: "42.4 ms", 999_999: "1.00 ms", 1_758_000_000: "1.76 s", 137_000_000: "137 ms"} {
		if got := FormatNS(ns); got != want {
			t.Errorf("FormatNS(%d) = %q, want %q", ns, got, want)
		}
	}
	for b, want := range map[float64]string{0: "0 B", 5e6: "5.00 MB", -274_000: "-274 kB", 21.5e6: "21.5 MB"} {
		if got := FormatBytes(b); got != want {
			t.Errorf("FormatBytes(%v) = %q, want %q", b, got, want)
		}
	}
	for ns, want := range map[float64]string{0: "0", 1e7: "10 ms", 2.5e6: "2.5 ms", 2e8: "200 ms"} {
		if got := tickNS(ns); got != want {
			t.Errorf("tickNS(%v) = %q, want %q", ns, got, want)
		}
	}
}
