package profiles

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// Kind is what a profile counts.
type Kind string

// Kinds of profile that a Go process offers (net/http/pprof).
const (
	CPU       Kind = "profile"
	Heap      Kind = "heap"
	Allocs    Kind = "allocs"
	Mutex     Kind = "mutex"
	Block     Kind = "block"
	Goroutine Kind = "goroutine"
)

// maxProfile bounds what a process may answer, in bytes.
const maxProfile = 64 << 20

// Fetch captures a profile of the process whose net/http/pprof handlers are at base, for example
// http://127.0.0.1:9090/debug/pprof. A CPU profile takes the duration, which is rounded up to seconds;
// mutex, block, heap and allocs profiles are the difference over it. Zero takes a snapshot.
func Fetch(ctx context.Context, client *http.Client, base string, kind Kind, duration time.Duration) (*profile.Profile, error) {
	query := url.Values{}
	if duration > 0 {
		query.Set("seconds", strconv.Itoa(int((duration+time.Second-1)/time.Second)))
	}
	target := strings.TrimRight(base, "/") + "/" + string(kind) + "?" + query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch %s profile: %w", kind, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch %s profile: %w", kind, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProfile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("fetch %s profile: %w", kind, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("fetch %s profile: HTTP %d: %.200s", kind, resp.StatusCode, bytes.TrimSpace(data))
	case len(data) > maxProfile:
		return nil, fmt.Errorf("fetch %s profile: more than %d bytes", kind, maxProfile)
	}
	return parse(kind, data)
}

// Local captures a profile of this process; a CPU profile by sampling while during runs, the others as
// they stand after it. During may be nil.
func Local(kind Kind, during func()) (*profile.Profile, error) {
	if during == nil {
		during = func() {}
	}
	var b bytes.Buffer
	if kind == CPU {
		if err := pprof.StartCPUProfile(&b); err != nil {
			return nil, fmt.Errorf("start a CPU profile: %w", err)
		}
		during()
		pprof.StopCPUProfile()
		return parse(kind, b.Bytes())
	}
	during()
	lookup := pprof.Lookup(string(kind))
	if lookup == nil {
		return nil, fmt.Errorf("this process has no %s profile", kind)
	}
	if err := lookup.WriteTo(&b, 0); err != nil {
		return nil, fmt.Errorf("write the %s profile: %w", kind, err)
	}
	return parse(kind, b.Bytes())
}

func parse(kind Kind, data []byte) (*profile.Profile, error) {
	p, err := profile.ParseData(data)
	if err != nil {
		return nil, fmt.Errorf("parse the %s profile: %w", kind, err)
	}
	return p, nil
}
