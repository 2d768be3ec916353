package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"cella.dev/cella/node"
)

// call sends a control-plane request as team blue and returns status, body and headers.
func (r *rig) call(method, path, body string, headers ...string) (int, string, http.Header) {
	r.t.Helper()
	var rd io.Reader
	if body != "" {
		// Not a *strings.Reader: its size is unknown, so it is sent chunked, as SDKs do.
		rd = io.MultiReader(strings.NewReader(body))
	}
	req, err := http.NewRequest(method, r.url+path, rd)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", r.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return r.do(req)
}

func (r *rig) do(req *http.Request) (int, string, http.Header) {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(out), resp.Header
}

func parse[T any](t testing.TB, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

func TestBadRequestsAreAnsweredInJSON(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	big := `{"templateID":"base","metadata":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`
	for _, c := range []struct {
		name, method, path, body string
		code                     int
		message                  string // a part of it
	}{
		{"unknown path", "GET", "/nope", "", 404, "/nope"},
		{"trailing slash", "GET", "/sandboxes/", "", 404, ""},
		{"double slash", "GET", "//sandboxes", "", 404, ""},
		{"wrong method", "PUT", "/sandboxes", "", 405, "PUT"},
		{"wrong method on a sandbox", "PATCH", "/sandboxes/x", "", 405, "PATCH"},
		{"unknown template", "POST", "/v2/sandboxes", `{"templateID":"nope"}`, 404, "nope"},
		{"no template", "POST", "/sandboxes", `{}`, 400, "templateID"},
		{"no body", "POST", "/sandboxes", ``, 400, "templateID"},
		{"not JSON", "POST", "/sandboxes", `{"templateID`, 400, "JSON"},
		{"JSON and more", "POST", "/sandboxes", `{"templateID":"base"} x`, 400, "JSON"},
		{"a list", "POST", "/sandboxes", `[]`, 400, "object"},
		{"template of wrong type", "POST", "/sandboxes", `{"templateID":7}`, 400, "templateID"},
		{"metadata of wrong type", "POST", "/sandboxes", `{"templateID":"base","metadata":{"a":1}}`, 400, "metadata"},
		{"env of wrong type", "POST", "/sandboxes", `{"templateID":"base","envVars":"a=b"}`, 400, "envVars"},
		{"timeout 0", "POST", "/sandboxes", `{"templateID":"base","timeout":0}`, 400, "timeout"},
		{"timeout -1", "POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "timeout"},
		{"timeout absurd", "POST", "/sandboxes", `{"templateID":"base","timeout":1000000000000}`, 400, "timeout"},
		{"timeout larger than an integer", "POST", "/sandboxes", `{"templateID":"base","timeout":1e30}`, 400, "timeout"},
		{"timeout that overflows a duration", "POST", "/sandboxes", `{"templateID":"base","timeout":9223372036854775807}`, 400, "timeout"},
		{"timeout fractional", "POST", "/sandboxes", `{"templateID":"base","timeout":1.5}`, 400, "timeout"},
		{"timeout as text", "POST", "/sandboxes", `{"templateID":"base","timeout":"60"}`, 400, "timeout"},
		{"connect timeout 0", "POST", "/sandboxes/" + sb.ID + "/connect", `{"timeout":0}`, 400, "timeout"},
		{"connect timeout -1", "POST", "/v2/sandboxes/" + sb.ID + "/connect", `{"timeout":-1}`, 400, "timeout"},
		{"connect timeout absurd", "POST", "/v2/sandboxes/" + sb.ID + "/connect", `{"timeout":99999999999}`, 400, "timeout"},
		{"connect v1 without timeout", "POST", "/sandboxes/" + sb.ID + "/connect", ``, 400, "timeout"},
		{"timeout without timeout", "POST", "/sandboxes/" + sb.ID + "/timeout", `{}`, 400, "timeout"},
		{"negative timeout", "POST", "/sandboxes/" + sb.ID + "/timeout", `{"timeout":-5}`, 400, "timeout"},
		{"refresh beyond an hour", "POST", "/sandboxes/" + sb.ID + "/refreshes", `{"duration":3601}`, 400, "duration"},
		{"unknown sandbox", "GET", "/sandboxes/nonexistent", "", 404, "nonexistent"},
		{"kill of an unknown one", "DELETE", "/sandboxes/non-existing-sandbox", "", 404, ""},
		{"connect to an unknown one", "POST", "/v2/sandboxes/inone/connect", ``, 404, "inone"},
		{"id with a slash", "GET", "/sandboxes/..%2F..%2Fetc", "", 404, ""},
		{"body too large", "POST", "/sandboxes", big, 413, "1048576"},
		{"auto-pause", "POST", "/sandboxes", `{"templateID":"base","autoPause":true}`, 501, "autoPause"},
		{"network mask", "POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a.test"}}`, 501, "network"},
		{"network transforms", "PUT", "/sandboxes/" + sb.ID + "/network", `{"rules":{"a.test":[{}]}}`, 501, "network"},
		{"malformed network rule", "PUT", "/sandboxes/" + sb.ID + "/network", `{"allowOut":["malformed"]}`, 400, `allowOut[0] "malformed"`},
		{"network rule of a wrong type", "PUT", "/sandboxes/" + sb.ID + "/network", `{"allowOut":"all"}`, 400, "allowOut"},
		{"network rule without a network", "PUT", "/sandboxes/" + sb.ID + "/network", `{"allowOut":["impossible"]}`, 501, "it is off"},
		{"network of an unknown sandbox", "PUT", "/sandboxes/inone/network", `{}`, 404, "inone"},
		{"volumes", "POST", "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"a","path":"/b"}]}`, 501, "volumeMounts"},
		{"pause", "POST", "/sandboxes/" + sb.ID + "/pause", ``, 501, "pausing"},
		{"fork", "POST", "/sandboxes/" + sb.ID + "/fork", `{"timeout":0}`, 501, "forking"},
		{"bad state", "GET", "/v2/sandboxes?state=dead", "", 400, "state"},
		{"bad limit", "GET", "/v2/sandboxes?limit=101", "", 400, "limit"},
		{"limit 0", "GET", "/v2/sandboxes?limit=0", "", 400, "limit"},
		{"bad order", "GET", "/v2/sandboxes?order=up", "", 400, "order"},
		{"bad time", "GET", "/v2/sandboxes?startedAfter=yesterday", "", 400, "startedAfter"},
		{"bad token", "GET", "/v2/sandboxes?nextToken=abc", "", 400, "nextToken"},
		{"bad metadata", "GET", "/v2/sandboxes?metadata=a%3D%25zz", "", 400, "metadata"},
		{"template tag", "GET", "/v2/sandboxes?template=base:v1", "", 400, "template"},
		{"unknown alias", "GET", "/templates/aliases/nope", "", 404, "nope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, h := r.call(c.method, c.path, c.body)
			got := parse[apiError](t, body)
			if status != c.code || got.Code != c.code || !strings.Contains(got.Message, c.message) {
				t.Errorf("%d %s; want %d with %q", status, body, c.code, c.message)
			}
			if ct := h.Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type = %q", ct)
			}
			if h.Get("Access-Control-Allow-Origin") != "*" {
				t.Error("no CORS header")
			}
			if c.code == 405 && h.Get("Allow") == "" {
				t.Error("no Allow header")
			}
		})
	}
	if n := len(r.node.created); n != 1 {
		t.Errorf("%d sandboxes were created, want only the test's own", n)
	}
}

func TestKeysAreChecked(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	for _, c := range []struct{ name, key string }{
		{"missing", ""}, {"unknown", "e2b_" + strings.Repeat("0", 40)}, {"garbage", "../../etc/passwd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, h := r.call("GET", "/v2/sandboxes", "", "X-API-Key", c.key)
			if status != 401 || parse[apiError](t, body).Code != 401 || h.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	t.Run("another team's sandbox does not exist", func(t *testing.T) {
		for _, c := range [][3]string{
			{"GET", "/sandboxes/" + sb.ID, ""}, {"DELETE", "/sandboxes/" + sb.ID, ""},
			{"POST", "/sandboxes/" + sb.ID + "/timeout", `{"timeout":5}`}, {"POST", "/v2/sandboxes/" + sb.ID + "/connect", ""},
			{"GET", "/sandboxes/" + sb.ID + "/metrics", ""},
		} {
			if status, body, _ := r.call(c[0], c[1], c[2], "X-API-Key", r.other); status != 404 {
				t.Errorf("%s %s = %d %s", c[0], c[1], status, body)
			}
		}
		if _, body, _ := r.call("GET", "/v2/sandboxes", "", "X-API-Key", r.other); body != "[]" {
			t.Errorf("list = %s", body)
		}
	})
	t.Run("a deleted key is refused by the next request", func(t *testing.T) { // C04
		key, secret, _ := r.keys.Create("x", "blue")
		if status, _, _ := r.call("GET", "/v2/sandboxes", "", "X-API-Key", secret); status != 200 {
			t.Fatalf("before: %d", status)
		}
		if err := r.keys.Remove(key.ID); err != nil {
			t.Fatal(err)
		}
		if status, _, _ := r.call("GET", "/v2/sandboxes", "", "X-API-Key", secret); status != 401 {
			t.Errorf("after: %d, want 401", status)
		}
	})
}

func TestSandboxLife(t *testing.T) {
	r := newRig(t)
	status, body, _ := r.call("POST", "/v2/sandboxes",
		`{"templateID":"base","timeout":60,"metadata":{"a":"b"},"envVars":{"X":"y"},"allow_internet_access":false,"autoPause":false,"unknownField":{}}`)
	if status != 201 {
		t.Fatalf("create = %d %s", status, body)
	}
	made := parse[map[string]any](t, body)
	id := made["sandboxID"].(string)
	want := map[string]any{"templateID": "tbase", "sandboxID": id, "clientID": "6532622b", "envdVersion": "0.6.13", "alias": "base",
		"envdAccessToken": "token-1", "trafficAccessToken": nil, "domain": testDomain}
	if !reflect.DeepEqual(made, want) {
		t.Errorf("create = %v, want %v", made, want)
	}
	no := false
	wantReq := node.CreateRequest{Template: "base", Timeout: time.Minute, Team: "blue", Metadata: map[string]string{"a": "b"},
		Env: map[string]string{"X": "y"}, Secure: true, AllowInternet: &no}
	if got := r.node.created[0]; !reflect.DeepEqual(got, wantReq) {
		t.Errorf("node was asked for %+v, want %+v", got, wantReq)
	}
	for _, name := range []string{id, id + "-" + clientID} {
		status, body, _ = r.call("GET", "/sandboxes/"+name, "")
		got := parse[map[string]any](t, body)
		if status != 200 || got["state"] != "running" || got["metadata"].(map[string]any)["a"] != "b" || got["allowInternetAccess"] != false ||
			got["cpuCount"] != 2.0 || got["envdAccessToken"] != "token-1" || got["lifecycle"].(map[string]any)["onTimeout"] != "kill" {
			t.Errorf("get %s = %d %s", name, status, body)
		}
	}
	ends := func() time.Duration { sb, _ := r.node.Get(id); return time.Until(sb.EndAt).Round(10 * time.Second) }
	for _, c := range []struct {
		path, body string
		status     int
		left       time.Duration
	}{
		{"/v2/sandboxes/" + id + "/connect", `{"timeout":10}`, 200, time.Minute}, // never shorter
		{"/sandboxes/" + id + "/connect", `{"timeout":120}`, 200, 2 * time.Minute},
		{"/v2/sandboxes/" + id + "/connect", ``, 200, 5 * time.Minute},
		{"/sandboxes/" + id + "/refreshes", `{"duration":600}`, 204, 10 * time.Minute},
		{"/sandboxes/" + id + "/refreshes", `{"duration":60}`, 204, 10 * time.Minute},
		{"/sandboxes/" + id + "/timeout", `{"timeout":30}`, 204, 30 * time.Second}, // may be shorter
	} {
		status, body, _ := r.call("POST", c.path, c.body)
		if status != c.status || ends() != c.left {
			t.Errorf("%s %s = %d %s and %v left; want %d and %v", c.path, c.body, status, body, ends(), c.status, c.left)
		}
	}
	if status, body, _ := r.call("DELETE", "/sandboxes/"+id, ""); status != 204 || body != "" {
		t.Errorf("kill = %d %s", status, body)
	}
	if status, _, _ := r.call("DELETE", "/sandboxes/"+id, ""); status != 404 {
		t.Errorf("second kill = %d, want 404", status)
	}
}

func TestNetworkRules(t *testing.T) {
	r := newRig(t)
	rules := func() string {
		_, body, _ := r.call("GET", "/sandboxes/i00000000000000000001", "")
		detail := parse[sandboxDetail](t, body)
		b, err := json.Marshal([]any{detail.AllowInternetAccess, detail.Network})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	status, body, _ := r.call("POST", "/v2/sandboxes",
		`{"templateID":"base","allow_internet_access":false,"network":{"allowOut":["a.test"],"denyOut":[],"allowPublicTraffic":true}}`)
	if want := `[false,{"allowOut":["a.test"]}]`; status != 201 || rules() != want {
		t.Errorf("create: %d %s, rules %s, want %s", status, body, rules(), want)
	}
	for _, c := range []struct{ body, want string }{
		{`{"allow_internet_access":true,"allowOut":["192.0.2.1"],"denyOut":["0.0.0.0/0"]}`, `[true,{"allowOut":["192.0.2.1"],"denyOut":["0.0.0.0/0"]}]`},
		{`{"denyOut":["192.0.2.0/24"]}`, `[null,{"denyOut":["192.0.2.0/24"]}]`},
		{`{}`, `[null,null]`},
	} {
		if status, body, _ := r.call("PUT", "/sandboxes/i00000000000000000001/network", c.body); status != 204 || rules() != c.want {
			t.Errorf("%s: %d %s, rules %s, want %s", c.body, status, body, rules(), c.want)
		}
	}
}

func TestCreateV1Defaults(t *testing.T) {
	r := newRig(t)
	status, body, _ := r.call("POST", "/sandboxes", `{"templateID":"tbase"}`)
	if status != 201 || strings.Contains(body, "envdAccessToken") {
		t.Errorf("%d %s", status, body)
	}
	if got := r.node.created[0]; got.Timeout != 15*time.Second || got.Secure {
		t.Errorf("node was asked for %+v", got)
	}
}

func TestNodeFailuresKeepTheirMeaning(t *testing.T) {
	r := newRig(t, func(c *Config) { c.CreateTimeout = 20 * time.Millisecond })
	sb := r.sandbox(false)
	for _, c := range []struct {
		name string
		err  error
		code int
		word string
	}{
		{"capacity", fmt.Errorf("all workers busy: %w", node.ErrCapacity), 503, "sandbox_capacity_unavailable"},
		{"failure", errors.New("restore: bad checksum"), 500, "sandbox_create_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.node.createErr = c.err
			defer func() { r.node.createErr = nil }()
			status, body, h := r.call("POST", "/v2/sandboxes", `{"templateID":"base"}`)
			got := parse[apiError](t, body)
			if status != c.code || got.ErrorCode != c.word || !strings.Contains(got.Message, c.err.Error()) {
				t.Errorf("%d %s", status, body)
			}
			if (status == 503) != (h.Get("Retry-After") == "1") {
				t.Errorf("Retry-After = %q", h.Get("Retry-After"))
			}
		})
	}
	t.Run("a create that never ends", func(t *testing.T) {
		r.node.createWait = make(chan struct{})
		status, body, _ := r.call("POST", "/v2/sandboxes", `{"templateID":"base"}`)
		if status != 504 || parse[apiError](t, body).ErrorCode != "sandbox_placement_timeout" {
			t.Errorf("%d %s", status, body)
		}
	})
	t.Run("connect while it is being killed", func(t *testing.T) { // C02
		r.node.conflict = fmt.Errorf("killing: %w", node.ErrConflict)
		status, body, _ := r.call("POST", "/v2/sandboxes/"+sb.ID+"/connect", "")
		if status != 409 || parse[apiError](t, body).Code != 409 {
			t.Errorf("%d %s", status, body)
		}
	})
}

func TestList(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{
		`{"templateID":"base","metadata":{"k e&y":"v=1 ü","n":"1"}}`,
		`{"templateID":"other","metadata":{"n":"2"}}`,
		`{"templateID":"base","metadata":{"n":"3"}}`,
	} {
		if status, out, _ := r.call("POST", "/v2/sandboxes", body); status != 201 {
			t.Fatalf("%d %s", status, out)
		}
	}
	if _, err := r.node.update("i00000000000000000003", func(sb *node.Sandbox) { sb.State = node.StatePaused }); err != nil {
		t.Fatal(err)
	}
	// As the SDKs encode it: keys and values, then the pairs, then the whole as one query value.
	pairs := url.Values{url.QueryEscape("k e&y"): {url.QueryEscape("v=1 ü")}}
	for _, c := range []struct {
		name, query string
		want        string // the "n" of each
		running     string
		more        bool
	}{
		{"all, newest first", "", "3 2 1", "2", false},
		{"oldest first", "order=asc", "1 2 3", "2", false},
		{"by metadata", "metadata=" + url.QueryEscape(pairs.Encode()), "1", "1", false},
		{"by other metadata", "metadata=" + url.QueryEscape("n=9"), "", "0", false},
		{"running", "state=running", "2 1", "2", false},
		{"paused", "state=paused", "3", "0", false},
		{"both states", "state=running,paused", "3 2 1", "2", false},
		{"by alias", "template=base", "3 1", "1", false},
		{"by template ID", "template=tother", "2", "1", false},
		{"unknown template", "template=nope", "", "0", false},
		{"started at or after", "startedAfter=2026-01-01T00:00:02Z", "3 2", "1", false},
		{"first page", "limit=2", "3 2", "2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, h := r.call("GET", "/v2/sandboxes?"+c.query, "")
			if got := ns(t, body); status != 200 || got != c.want || h.Get("X-Total-Running") != c.running || (h.Get("X-Next-Token") != "") != c.more {
				t.Errorf("%d %q running %s next %q; want %q, %s, %v", status, got, h.Get("X-Total-Running"), h.Get("X-Next-Token"), c.want, c.running, c.more)
			}
		})
	}
	t.Run("pages join without gap or overlap", func(t *testing.T) {
		for _, order := range []string{"asc", "desc"} {
			var all []string
			for token := ""; ; {
				_, body, h := r.call("GET", "/v2/sandboxes?limit=1&order="+order+"&nextToken="+url.QueryEscape(token), "")
				all = append(all, ns(t, body))
				if token = h.Get("X-Next-Token"); token == "" {
					break
				}
			}
			want := map[string]string{"asc": "1 2 3", "desc": "3 2 1"}[order]
			if got := strings.Join(all, " "); got != want {
				t.Errorf("%s: %q, want %q", order, got, want)
			}
		}
	})
	t.Run("a token of the other order is refused", func(t *testing.T) {
		_, _, h := r.call("GET", "/v2/sandboxes?limit=1&order=asc", "")
		if status, _, _ := r.call("GET", "/v2/sandboxes?nextToken="+url.QueryEscape(h.Get("X-Next-Token")), ""); status != 400 {
			t.Errorf("status = %d, want 400", status)
		}
	})
	t.Run("v1 lists running ones", func(t *testing.T) {
		if _, body, _ := r.call("GET", "/sandboxes", ""); ns(t, body) != "2 1" {
			t.Errorf("got %s", body)
		}
	})
}

// ns joins the "n" metadata of listed sandboxes.
func ns(t *testing.T, body string) string {
	var out []string
	for _, sb := range parse[[]listedSandbox](t, body) {
		out = append(out, sb.Metadata["n"])
	}
	return strings.Join(out, " ")
}

// TestRememberedCreatesAreSmall: ten thousand creates are remembered for a day, whatever their bodies held.
func TestRememberedCreatesAreSmall(t *testing.T) {
	r := newRig(t)
	body := `{"templateID":"base","metadata":{"a":"` + strings.Repeat("x", 900_000) + `"}}`
	if status, out, _ := r.call("POST", "/v2/sandboxes", body, "Idempotency-Key", "big"); status != 201 {
		t.Fatalf("%d %s", status, out)
	}
	r.gw.creates.mu.Lock()
	defer r.gw.creates.mu.Unlock()
	for _, e := range r.gw.creates.entries {
		if kept, _ := json.Marshal(e.sandbox); len(kept) > 4096 {
			t.Errorf("%d bytes are kept", len(kept))
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	r := newRig(t)
	const body = `{"templateID":"base"}`
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			_, out, _ := r.call("POST", "/v2/sandboxes", body, "Idempotency-Key", "k1")
			ids[i] = parse[sandboxBody](t, out).SandboxID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("ids = %v, want one", ids)
		}
	}
	if status, _, _ := r.call("POST", "/v2/sandboxes", `{"templateID":"other"}`, "Idempotency-Key", "k1"); status != 409 {
		t.Errorf("another body = %d, want 409", status)
	}
	if status, out, _ := r.call("POST", "/v2/sandboxes", body, "Idempotency-Key", "k1", "X-API-Key", r.other); status != 201 || strings.Contains(out, ids[0]) {
		t.Errorf("another team = %d %s, want a sandbox of its own", status, out)
	}
	if status, _, _ := r.call("POST", "/v2/sandboxes", `{"templateID":"nope"}`, "Idempotency-Key", "k2"); status != 404 {
		t.Errorf("status = %d", status)
	}
	if status, _, _ := r.call("POST", "/v2/sandboxes", body, "Idempotency-Key", "k2"); status != 201 {
		t.Errorf("after a failure the key is free: %d, want 201", status)
	}
	if status, _, _ := r.call("POST", "/v2/sandboxes", body, "Idempotency-Key", strings.Repeat("k", 256)); status != 400 {
		t.Errorf("long key = %d, want 400", status)
	}
}

func TestTemplatesAndHealth(t *testing.T) {
	r := newRig(t)
	status, body, _ := r.call("GET", "/v2/templates", "")
	if list := parse[[]templateBody](t, body); status != 200 || len(list) != 2 || list[0].TemplateID != "tbase" || list[0].Names[0] != "base" {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := r.call("GET", "/templates/aliases/base", ""); status != 200 || body != `{"templateID":"tbase","public":true}` {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := r.call("GET", "/health", "", "X-API-Key", ""); status != 204 {
		t.Errorf("health = %d", status)
	}
}

func TestPreflightNeedsNoKey(t *testing.T) {
	r := newRig(t)
	req, _ := http.NewRequest("OPTIONS", r.url+"/v2/sandboxes", nil)
	req.Header.Set("Origin", "https://example.com")
	req.Header.Set("Access-Control-Request-Method", "POST")
	req.Header.Set("Access-Control-Request-Headers", "x-api-key, e2b-sandbox-id")
	status, _, h := r.do(req)
	if status != 204 || h.Get("Access-Control-Allow-Headers") != "x-api-key, e2b-sandbox-id" ||
		h.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "DELETE") {
		t.Errorf("%d %v", status, h)
	}
}

func TestMetricsComeFromTheAgent(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(true)
	answer := `{"ts":1700000000,"cpu_count":2,"cpu_used_pct":12.5,"mem_total":100,"mem_used":50,"mem_cache":7,"disk_used":3,"disk_total":9}`
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("X-Access-Token") != sb.AccessToken || req.URL.Path != "/metrics" {
			w.WriteHeader(401)
			return
		}
		io.WriteString(w, answer)
	})
	want := `[{"timestamp":"2023-11-14T22:13:20Z","timestampUnix":1700000000,"cpuCount":2,"cpuUsedPct":12.5,"memUsed":50,"memTotal":100,"memCache":7,"diskUsed":3,"diskTotal":9}]`
	if status, body, _ := r.call("GET", "/sandboxes/"+sb.ID+"/metrics", ""); status != 200 || body != want {
		t.Errorf("%d %s, want %s", status, body, want)
	}
	if _, body, _ := r.call("GET", "/sandboxes/"+sb.ID+"/metrics?start=1700000001", ""); body != "[]" {
		t.Errorf("outside the range: %s", body)
	}
	if status, body, _ := r.call("GET", "/sandboxes/metrics?sandbox_ids="+sb.ID+",inone", ""); status != 200 || !strings.Contains(body, sb.ID) {
		t.Errorf("%d %s", status, body)
	}
	answer = strings.Repeat(" ", 1<<20) + answer
	if status, _, _ := r.call("GET", "/sandboxes/"+sb.ID+"/metrics", ""); status != 503 {
		t.Errorf("a boundless answer: %d, want 503", status)
	}
}

func TestOversizeBodyIsAnsweredBeforeTheConnectionCloses(t *testing.T) {
	r := newRig(t)
	body := bytes.Repeat([]byte("x"), 20<<20)
	for range 5 {
		req, _ := http.NewRequest("POST", r.url+"/sandboxes", bytes.NewReader(body))
		req.Header.Set("X-API-Key", r.key)
		if status, out, _ := r.do(req); status != 413 {
			t.Fatalf("%d %s, want 413", status, out)
		}
	}
}

func TestServerTiming(t *testing.T) {
	got := serverTiming([]node.Phase{{Name: "claim", Duration: 1500 * time.Nanosecond}, {Name: "restore", Duration: 2 * time.Millisecond}})
	if want := "claim;dur=0.001500, restore;dur=2.000000"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
