package profiles

import (
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// made has one sample of each function with the given nanoseconds.
func made(functions map[string]int64) *profile.Profile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
	}
	id := uint64(0)
	for name, ns := range functions {
		id++
		f := &profile.Function{ID: id, Name: name}
		l := &profile.Location{ID: id, Address: id, Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{1, ns}})
	}
	return p
}

// cpu sums the nanoseconds of each function, or of each label's value if key is not empty.
func cpu(p *profile.Profile, key string) map[string]int64 {
	out := map[string]int64{}
	for _, s := range p.Sample {
		name := s.Location[0].Line[0].Function.Name
		if key != "" {
			name = strings.Join(s.Label[key], ",")
		}
		out[name] += s.Value[1]
	}
	return out
}

func TestMergeKeepsLabels(t *testing.T) {
	gateway, node := made(map[string]int64{"f": 10}), made(map[string]int64{"f": 5, "g": 1})
	Label(gateway, "process", "gateway")
	Label(node, "process", "node")
	merged, err := Merge(gateway, node)
	if err != nil {
		t.Fatal(err)
	}
	if got := cpu(merged, "process"); got["gateway"] != 10 || got["node"] != 6 {
		t.Errorf("by process: %v", got)
	}
	if got := cpu(merged, ""); got["f"] != 15 || got["g"] != 1 {
		t.Errorf("by function: %v", got)
	}
	if _, err := Merge(); err == nil {
		t.Error("merging nothing gave no error")
	}
}

func TestDiff(t *testing.T) {
	base, head := made(map[string]int64{"f": 10, "gone": 3}), made(map[string]int64{"f": 14, "new": 2})
	diff, err := Diff(base, head)
	if err != nil {
		t.Fatal(err)
	}
	got := cpu(diff, "")
	if got["f"] != 4 || got["gone"] != -3 || got["new"] != 2 {
		t.Errorf("got %v", got)
	}
	if total, ok := Total(base, "cpu"); !ok || total != 13 {
		t.Errorf("the base was changed: its total is %d", total)
	}
	if total, ok := Total(diff, "cpu"); !ok || total != 3 {
		t.Errorf("total %d, want 3", total)
	}
	if _, ok := Total(diff, "nosuch"); ok {
		t.Error("there is a total of an unknown type")
	}
}

func TestFetch(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/bad/heap", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	mux.HandleFunc("/text/heap", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	server := httptest.NewServer(mux)
	defer server.Close()
	p, err := Fetch(t.Context(), server.Client(), server.URL+"/debug/pprof/", Goroutine, 0)
	if err != nil {
		t.Fatal(err)
	}
	if total, ok := Total(p, "goroutine"); !ok || total < 2 {
		t.Errorf("%d goroutines, want at least this test and the server", total)
	}
	for path, want := range map[string]string{"/bad": "HTTP 403: no", "/text": "parse the heap profile"} {
		if _, err := Fetch(t.Context(), server.Client(), server.URL+path, Heap, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

func TestLocalAndWrite(t *testing.T) {
	p, err := Local(CPU, func() {
		for start := time.Now(); time.Since(start) < 150*time.Millisecond; {
			_ = strings.Repeat("x", 1000)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Total(p, "cpu"); !ok {
		t.Error("the profile has no cpu")
	}
	path := filepath.Join(t.TempDir(), "profiles", "cpu.pb.gz")
	if err := Write(path, p); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	back, err := profile.ParseData(data)
	if err != nil || len(back.Sample) != len(p.Sample) {
		t.Errorf("read back %v, %v", back, err)
	}
	if _, err := Local("nosuch", nil); err == nil {
		t.Error("an unknown kind gave no error")
	}
	if _, err := Local(Heap, nil); err != nil {
		t.Error(err)
	}
}
