package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/node"
)

// data builds a data-plane request routed by headers.
func (r *rig) data(method, id string, port int, path string, body io.Reader, headers ...string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", id)
	req.Header.Set("E2b-Sandbox-Port", strconv.Itoa(port))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// whoami answers with the name it was made for.
func whoami(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }
}

func TestRouting(t *testing.T) { // C03
	r := newRig(t)
	a, b := r.sandbox(false), r.sandbox(false)
	r.node.serve(t, a.ID, 49983, whoami("a:49983"))
	r.node.serve(t, a.ID, 8080, whoami("a:8080"))
	r.node.serve(t, b.ID, 8080, whoami("b:8080"))
	hostOf := func(port int, sb node.Sandbox, rest string) string { return fmt.Sprintf("%d-%s%s", port, sb.ID, rest) }
	for _, c := range []struct {
		name, host, id, port string
		code                 int
		want                 string
	}{
		{"headers under an address", r.addr, a.ID, "8080", 200, "a:8080"},
		{"headers under localhost", "localhost", a.ID, "49983", 200, "a:49983"},
		{"headers under sandbox.*", "sandbox." + testDomain, b.ID, "8080", 200, "b:8080"},
		{"headers under a name of the operator's", "cella.internal:3000", b.ID, "8080", 200, "b:8080"},
		{"headers with the client's suffix", "localhost", a.ID + "-" + clientID, "8080", 200, "a:8080"},
		{"host name", hostOf(8080, b, "."+testDomain), "", "", 200, "b:8080"},
		{"host name with a port", hostOf(8080, b, "."+testDomain+":3000"), "", "", 200, "b:8080"},
		{"host name with a suffix", hostOf(8080, b, "-6532622b."+testDomain), "", "", 200, "b:8080"},
		{"host name under any domain", hostOf(8080, b, ".elsewhere.example"), "", "", 200, "b:8080"},
		{"the host name wins", hostOf(8080, b, "."+testDomain), a.ID, "8080", 200, "b:8080"},
		{"bad id", "localhost", "../etc", "8080", 400, "bad sandbox id \"../etc\"\n"},
		{"upper-case id", "localhost", "ABC", "8080", 400, "bad sandbox id \"ABC\"\n"},
		{"port 0", "localhost", a.ID, "0", 400, "bad port \"0\"\n"},
		{"port 65536", "localhost", a.ID, "65536", 400, "bad port \"65536\"\n"},
		{"port -1", "localhost", a.ID, "-1", 400, "bad port \"-1\"\n"},
		{"no port", "localhost", a.ID, "", 400, "missing header E2b-Sandbox-Port\n"},
		{"no id under sandbox.*", "sandbox." + testDomain, "", "", 400, "missing header E2b-Sandbox-Id\n"},
		{"bad port in the host", "99999-" + a.ID + "." + testDomain, "", "", 400, "bad port \"99999\"\n"},
		{"bad host of the domain", "what." + testDomain, "", "", 400, "bad host \"what.cella.test\": want <port>-<sandbox id>.cella.test\n"},
		{"unknown sandbox", "localhost", "inone", "8080", 502, `{"sandboxId":"inone","message":"The sandbox was not found","code":502}`},
		{"unknown sandbox by host", "8080-inone." + testDomain, "", "", 502, `{"sandboxId":"inone","message":"The sandbox was not found","code":502}`},
		{"closed port", "localhost", a.ID, "81", 502, `{"sandboxId":"` + a.ID + `","message":"The sandbox is running but port is not open","port":81,"code":502}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, _ := http.NewRequest("GET", r.url+"/", nil)
			req.Host = c.host
			if c.id != "" {
				req.Header.Set("E2b-Sandbox-Id", c.id)
			}
			if c.port != "" {
				req.Header.Set("E2b-Sandbox-Port", c.port)
			}
			status, body, h := r.do(req)
			if status != c.code || body != c.want {
				t.Errorf("%d %q, want %d %q", status, body, c.code, c.want)
			}
			if c.code != 200 && h.Get("Access-Control-Allow-Origin") != "*" {
				t.Error("no CORS header on the gateway's own answer")
			}
		})
	}
	t.Run("api host is the control plane", func(t *testing.T) {
		req, _ := http.NewRequest("GET", r.url+"/health", nil)
		req.Host = "api." + testDomain
		if status, _, _ := r.do(req); status != 204 {
			t.Errorf("status = %d", status)
		}
	})
}

func TestClosedPortIsRetried(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	done := make(chan string, 1)
	go func() {
		_, body, _ := r.do(r.data("GET", sb.ID, 8080, "/", nil))
		done <- body
	}()
	for { // the first dial has failed: open the port
		r.node.mu.Lock()
		n := r.node.dials
		r.node.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	r.node.serve(t, sb.ID, 8080, whoami("late"))
	if body := <-done; body != "late" {
		t.Errorf("body = %q", body)
	}
}

func TestErrorPagesAreForBrowsersOnly(t *testing.T) {
	r := newRig(t)
	const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	for _, c := range []struct {
		name    string
		headers []string
		html    bool
	}{
		{"browser", []string{"User-Agent", firefox, "Sec-Fetch-Mode", "navigate"}, true},
		{"old browser", []string{"User-Agent", firefox}, true},
		{"page's fetch", []string{"User-Agent", firefox, "Sec-Fetch-Mode", "cors"}, false},
		{"browser that wants JSON", []string{"User-Agent", firefox, "Accept", "application/json"}, false},
		{"SDK", []string{"User-Agent", "e2b-js-sdk/2.51.0"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, h := r.do(r.data("GET", "inone", 80, "/", nil, c.headers...))
			html := strings.HasPrefix(h.Get("Content-Type"), "text/html") && strings.Contains(body, "<!doctype html>")
			if status != 502 || html != c.html {
				t.Errorf("%d, html %v; want 502, %v", status, html, c.html)
			}
		})
	}
}

func TestAgentAccess(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(true)
	reached := 0
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) { reached++ })
	r.node.serve(t, sb.ID, 8080, whoami("app"))
	future := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	const past = "1700000000"
	q := func(op, user, expires string) string {
		s := "/files?path=hello.txt&username=" + user + "&signature=" + queryEscape(sign("hello.txt", op, user, sb.AccessToken, expires))
		if expires != "" {
			s += "&signature_expiration=" + expires
		}
		return s
	}
	for _, c := range []struct {
		name, method, path, token string
		code                      int
		message                   string
	}{
		{"right token", "POST", "/process.Process/List", sb.AccessToken, 200, ""},
		{"no token", "POST", "/process.Process/List", "", 401, ""},
		{"wrong token", "POST", "/process.Process/List", "nope", 401, ""},
		{"health needs none", "GET", "/health", "", 200, ""},
		{"health by other methods does", "POST", "/health", "", 401, ""},
		{"a path that is only like health", "GET", "/health/../files", "", 401, ""},
		{"signed read", "GET", q("read", "user", ""), "", 200, ""},
		{"signed read until later", "GET", q("read", "", future), "", 200, ""},
		{"signed write", "POST", q("write", "", ""), "", 200, ""},
		{"read signature used to write", "POST", q("read", "", ""), "", 401, "invalid signature"},
		{"expired", "GET", q("read", "", past), "", 401, "signature is already expired"},
		{"signature elsewhere", "GET", strings.Replace(q("read", "", ""), "/files", "/envs", 1), "", 401, ""},
		{"init", "POST", "/init", sb.AccessToken, 404, ""},
		{"init by GET", "GET", "/init", sb.AccessToken, 404, ""},
		{"init escaped", "POST", "/%69nit", sb.AccessToken, 404, ""},
		{"init through dots", "POST", "/x/../init", sb.AccessToken, 404, ""},
		{"init with slashes", "POST", "//init/", sb.AccessToken, 404, ""},
		{"freeze", "POST", "/freeze", sb.AccessToken, 404, ""},
		{"upgrade", "PUT", "/upgrade", sb.AccessToken, 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := reached
			var headers []string
			if c.token != "" {
				headers = []string{"X-Access-Token", c.token}
			}
			status, body, h := r.do(r.data(c.method, sb.ID, 49983, c.path, nil, headers...))
			if status != c.code {
				t.Fatalf("%d %s, want %d", status, body, c.code)
			}
			if c.code == 200 {
				return
			}
			if got := parse[apiError](t, body); got.Code != c.code || c.message != "" && got.Message != c.message {
				t.Errorf("body = %s", body)
			}
			if reached != before {
				t.Error("the request reached the guest")
			}
			if h.Get("Access-Control-Allow-Origin") != "*" {
				t.Error("no CORS header")
			}
		})
	}
	t.Run("other ports need no token", func(t *testing.T) {
		if _, body, _ := r.do(r.data("GET", sb.ID, 8080, "/init", nil)); body != "app" {
			t.Errorf("body = %q", body)
		}
	})
	t.Run("a signed URL without headers finds its sandbox", func(t *testing.T) {
		for _, c := range []struct {
			path string
			code int
		}{{q("read", "user", ""), 200}, {q("read", "", past), 401}, {"/files?path=a&signature=v1_x", 404}} {
			req, _ := http.NewRequest("GET", r.url+c.path, nil)
			if status, body, _ := r.do(req); status != c.code {
				t.Errorf("%s = %d %s, want %d", c.path, status, body, c.code)
			}
		}
	})
	t.Run("preflight is answered without the guest", func(t *testing.T) {
		before := reached
		req := r.data("OPTIONS", sb.ID, 49983, "/files", nil, "Access-Control-Request-Method", "POST")
		if status, _, _ := r.do(req); status != 204 || reached != before {
			t.Errorf("status %d, guest reached %v", status, reached != before)
		}
	})
}

func queryEscape(s string) string { return strings.NewReplacer("+", "%2B", "/", "%2F").Replace(s) }

func TestSignatureVectors(t *testing.T) {
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	for user, want := range map[string]string{
		"user": "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
		"":     "v1_SnvZASdG5vD8p9rpaldX3434NfwgRVsYsvzCBL6oZbc",
	} {
		if got := sign("hello.txt", "read", user, token, ""); got != want {
			t.Errorf("user %q: %s, want %s", user, got, want)
		}
	}
}

// echoed is what echo saw.
type echoed struct {
	Method, URI, Host string
	Header            http.Header
	Body              string
	Length            int64
}

func echo(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	w.Header().Set("X-Multi", "1")
	w.Header().Add("X-Multi", "2")
	w.Header().Add("Set-Cookie", "a=1")
	w.Header().Add("Set-Cookie", "b=2; Path=/")
	json.NewEncoder(w).Encode(echoed{req.Method, req.RequestURI, req.Host, req.Header, string(body), req.ContentLength})
}

func TestRequestsArriveAsTheyWereSent(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, echo)
	for _, c := range []struct{ method, uri, body string }{
		{"GET", "/", ""},
		{"GET", "/a%2Fb//c/../d?x=%20&a=1;b&&", ""},
		{"GET", "/%C3%BC?q=ü", ""},
		{"POST", "/p", "hello"},
		{"PUT", "/p", strings.Repeat("0123456789", 100_000)},
		{"DELETE", "/d", "with a body"},
		{"PATCH", "/", ""},
		{"REPORT", "/dav", "x"},
	} {
		for _, chunked := range []bool{false, true} {
			if chunked && c.body == "" {
				continue
			}
			head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: 8080-%s.%s\r\nX-API-Key: secret\r\nX-Custom: a  b\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\n", c.method, c.uri, sb.ID, testDomain)
			switch {
			case chunked:
				head += fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(c.body), c.body)
			case c.body != "" || c.method == "PATCH":
				head += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(c.body), c.body)
			default:
				head += "\r\n"
			}
			resp := rawExchange(t, r.addr, head)
			got := parse[echoed](t, resp.body)
			if got.Method != c.method || got.URI != c.uri || got.Body != c.body || got.Host != "8080-"+sb.ID+"."+testDomain {
				t.Errorf("%s %s (chunked %v) arrived as %s %s, host %s, %d bytes", c.method, c.uri, chunked, got.Method, got.URI, got.Host, len(got.Body))
			}
			for name, want := range map[string]string{"X-Custom": "a  b", "X-Api-Key": "", "X-Hop": "", "Connection": "", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http"} {
				if v := strings.Join(got.Header[name], ","); v != want {
					t.Errorf("%s %s: header %s arrived as %q, want %q", c.method, c.uri, name, v, want)
				}
			}
			if multi := resp.header["X-Multi"]; len(multi) != 2 || len(resp.header["Set-Cookie"]) != 2 {
				t.Errorf("response headers %v", resp.header)
			}
		}
	}
}

type rawResponse struct {
	status int
	header http.Header
	body   string
}

// rawExchange sends bytes as they are and reads one response.
func rawExchange(t testing.TB, addr, request string) rawResponse {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	go io.WriteString(c, request)
	return readRaw(t, bufio.NewReader(c))
}

func readRaw(t testing.TB, br *bufio.Reader) rawResponse {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return rawResponse{resp.StatusCode, resp.Header, string(body)}
}

func TestResponsesWithoutBodies(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, req *http.Request) {
		code, _ := strconv.Atoi(req.URL.Query().Get("code"))
		if n := req.URL.Query().Get("length"); n != "" {
			w.Header().Set("Content-Length", n)
		}
		w.WriteHeader(code)
	})
	for _, c := range []struct {
		method, query, length string
		code                  int
	}{
		{"GET", "code=204", "", 204}, {"GET", "code=304", "", 304}, {"GET", "code=200&length=0", "0", 200},
		{"HEAD", "code=200&length=12345", "12345", 200}, {"POST", "code=202", "0", 202},
	} {
		status, body, h := r.do(r.data(c.method, sb.ID, 8080, "/?"+c.query, nil))
		if status != c.code || body != "" || h.Get("Content-Length") != c.length {
			t.Errorf("%s %s = %d %q, Content-Length %q; want %d and %q", c.method, c.query, status, body, h.Get("Content-Length"), c.code, c.length)
		}
	}
}

func TestLargeTransfersAreExact(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	const size = 24 << 20
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == "POST" {
			h := sha256.New()
			n, _ := io.Copy(h, req.Body)
			fmt.Fprintf(w, "%d %x", n, h.Sum(nil))
			return
		}
		if req.URL.Query().Get("length") != "" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		io.Copy(w, io.LimitReader(&pattern{}, size))
	})
	h := sha256.New()
	io.Copy(h, io.LimitReader(&pattern{}, size))
	want := fmt.Sprintf("%x", h.Sum(nil))
	for _, chunked := range []bool{false, true} {
		req := r.data("POST", sb.ID, 49983, "/files?path=x", io.LimitReader(&pattern{}, size))
		if !chunked {
			req.ContentLength = size
		}
		if _, body, _ := r.do(req); body != fmt.Sprintf("%d %s", size, want) {
			t.Errorf("upload, chunked %v: %s", chunked, body)
		}
		path := "/files?path=x"
		if !chunked {
			path += "&length=1"
		}
		resp, err := http.DefaultClient.Do(r.data("GET", sb.ID, 49983, path, nil))
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		n, err := io.Copy(h, resp.Body)
		resp.Body.Close()
		if got := fmt.Sprintf("%x", h.Sum(nil)); err != nil || n != size || got != want {
			t.Errorf("download, chunked %v: %d bytes, %v", chunked, n, err)
		}
	}
}

// pattern is an endless reader whose bytes tell where they stand.
type pattern struct{ n uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	b = b[:max(len(b)&^7, min(len(b), 7))]
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], p.n)
		p.n++
	}
	return len(b), nil
}

// within fails the test if f takes longer than is plausible for something that happens at once.
func within(t testing.TB, what string, f func()) time.Duration {
	t.Helper()
	start := time.Now()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatalf("%s: not within 5 s", what)
	}
	return time.Since(start)
}

func TestStreamHeadAndEventsArriveAtOnce(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	next := make(chan string)
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/connect+json")
		w.(http.Flusher).Flush()
		for s := range next {
			io.WriteString(w, s)
			w.(http.Flusher).Flush()
		}
	})
	var resp *http.Response
	within(t, "head of a silent stream", func() {
		var err error
		if resp, err = http.DefaultClient.Do(r.data("POST", sb.ID, 49983, "/process.Process/Start", strings.NewReader("{}"))); err != nil {
			t.Error(err)
		}
	})
	defer resp.Body.Close()
	for _, s := range []string{"one", "two", "three"} {
		next <- s
		within(t, "event "+s, func() {
			buf := make([]byte, 100)
			n, err := resp.Body.Read(buf)
			if string(buf[:n]) != s || err != nil {
				t.Errorf("read %q, %v", buf[:n], err)
			}
		})
	}
	close(next)
	if rest, err := io.ReadAll(resp.Body); len(rest) != 0 || err != nil {
		t.Errorf("end: %q, %v", rest, err)
	}
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, req *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		buf := make([]byte, 100)
		for {
			n, err := req.Body.Read(buf)
			if n > 0 {
				fmt.Fprintf(w, "<%s>", buf[:n])
				w.(http.Flusher).Flush()
			}
			if err != nil {
				return
			}
		}
	})
	pr, pw := io.Pipe()
	resp, err := http.DefaultClient.Do(r.data("POST", sb.ID, 8080, "/", pr))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, s := range []string{"a", "bb", "ccc"} {
		within(t, "echo", func() {
			io.WriteString(pw, s)
			buf := make([]byte, 100)
			n, err := resp.Body.Read(buf)
			if got := string(buf[:n]); got != "<"+s+">" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); len(rest) != 0 || err != nil {
		t.Errorf("end: %q, %v", rest, err)
	}
}

func TestClientThatLeavesCancelsTheGuest(t *testing.T) {
	for _, c := range []struct {
		name string
		// before runs in the guest's handler before it waits for the end.
		before func(w http.ResponseWriter)
	}{
		{"before the head", func(http.ResponseWriter) {}},
		{"in a silent stream", func(w http.ResponseWriter) { w.(http.Flusher).Flush() }},
		{"after an event", func(w http.ResponseWriter) { io.WriteString(w, "x"); w.(http.Flusher).Flush() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			sb := r.sandbox(false)
			entered, cancelled := make(chan struct{}), make(chan struct{})
			r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
				c.before(w)
				close(entered)
				<-req.Context().Done()
				close(cancelled)
			})
			ctx, cancel := context.WithCancel(context.Background())
			go http.DefaultClient.Do(r.data("GET", sb.ID, 49983, "/", nil).WithContext(ctx))
			<-entered
			took := within(t, "cancellation", func() { cancel(); <-cancelled })
			t.Logf("seen after %v", took)
		})
	}
}

func TestClientThatLeavesDuringAnUploadCutsIt(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	entered, ended := make(chan struct{}), make(chan error, 1)
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		entered <- struct{}{}
		_, err := io.Copy(io.Discard, req.Body)
		ended <- err
	})
	for _, framing := range []string{"Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /files HTTP/1.1\r\nHost: 49983-%s.x.y\r\n%s\r\n\r\n", sb.ID, framing)
		io.WriteString(c, "4e20\r\n"+strings.Repeat("x", 20000))
		<-entered
		c.Close()
		within(t, "end of a cut upload", func() {
			if err := <-ended; err == nil {
				t.Errorf("%s: the guest took half a body for a whole one", framing)
			}
		})
	}
}

func TestKilledSandboxBreaksItsStreams(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	ln := r.node.listen(t, sb.ID, 49983)
	// A guest that neither ends its stream nor notices anything, as one whose VM was stopped.
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
		}
	}()
	resp, err := http.DefaultClient.Do(r.data("GET", sb.ID, 49983, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := r.call("DELETE", "/sandboxes/"+sb.ID, ""); status != 204 {
		t.Fatalf("kill = %d", status)
	}
	within(t, "end of the stream", func() {
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the stream ended cleanly; want an error")
		}
	})
	if status, body, _ := r.do(r.data("GET", sb.ID, 49983, "/health", nil)); status != 502 || !strings.Contains(body, "The sandbox was not found") {
		t.Errorf("health after = %d %s", status, body)
	}
}

func TestAgentConnectionIsReused(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/stream" {
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "ok")
	})
	client := make(map[string]bool)
	for i := range 20 {
		path := []string{"/unary", "/stream"}[i%2]
		req := r.data("POST", sb.ID, 49983, path, io.MultiReader(strings.NewReader("body")))
		if _, body, h := r.do(req); body != "ok" || h.Get("Connection") == "close" {
			t.Fatalf("%s: %q, Connection %q", path, body, h.Get("Connection"))
		}
		client[path] = true
	}
	if r.node.dials != 1 {
		t.Errorf("%d dials for 20 calls, want 1", r.node.dials)
	}
}

func TestDeadPooledConnectionIsReplaced(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	ln := r.node.listen(t, sb.ID, 49983)
	hits := make(chan string, 10)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			req, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			hits <- req.Method
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			c.Close() // although it promised to keep the connection
		}
	}()
	for _, method := range []string{"GET", "POST", "POST", "GET"} {
		if status, body, _ := r.do(r.data(method, sb.ID, 49983, "/", nil)); status != 200 || body != "ok" {
			t.Fatalf("%s = %d %s", method, status, body)
		}
		if got := <-hits; got != method {
			t.Fatalf("guest saw %s, want %s", got, method)
		}
	}
}

func TestRefusalDuringAnUploadReachesTheClient(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		io.CopyN(io.Discard, req.Body, 1<<20)
		w.WriteHeader(507)
		io.WriteString(w, `{"code":507,"message":"disk full"}`)
	})
	for _, chunked := range []bool{false, true} {
		req := r.data("POST", sb.ID, 49983, "/files", io.LimitReader(&pattern{}, 32<<20))
		if !chunked {
			req.ContentLength = 32 << 20
		}
		if status, body, _ := r.do(req); status != 507 || !strings.Contains(body, "disk full") {
			t.Errorf("chunked %v: %d %s", chunked, status, body)
		}
	}
}

func TestHostileGuestAnswers(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	answer := ""
	ln := r.node.listen(t, sb.ID, 8080)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, answer)
			}
			c.Close()
		}
	}()
	for _, c := range []struct{ name, answer string }{
		{"nothing", ""},
		{"garbage", "\x00\x01\x02 hello\r\n\r\n"},
		{"half a head", "HTTP/1.1 200 OK\r\nContent-Le"},
		{"endless header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 1<<20)},
		{"endless interim answers", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000)},
		{"101 unasked", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer = c.answer
			status, body, _ := r.do(r.data("POST", sb.ID, 8080, "/", nil))
			if status != 502 || !strings.Contains(body, `"code":502`) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	t.Run("a body cut short is not passed as whole", func(t *testing.T) {
		for _, a := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
			answer = a
			resp, err := http.DefaultClient.Do(r.data("POST", sb.ID, 8080, "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				t.Errorf("%q ended cleanly with %q", a, body)
			}
		}
	})
	t.Run("a body that ends with the connection", func(t *testing.T) {
		answer = "HTTP/1.0 200 OK\r\n\r\nall of it"
		if _, body, _ := r.do(r.data("GET", sb.ID, 8080, "/", nil)); body != "all of it" {
			t.Errorf("body = %q", body)
		}
	})
	t.Run("bytes after the answer are not the next one", func(t *testing.T) {
		answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
		for range 3 {
			if _, body, _ := r.do(r.data("GET", sb.ID, 8080, "/", nil)); body != "ok" {
				t.Errorf("body = %q", body)
			}
		}
	})
}

func TestTrailersArePassedOn(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set("Grpc-Status", "0")
	})
	resp, err := http.DefaultClient.Do(r.data("GET", sb.ID, 8080, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "body" || err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q, %v, trailer %v", body, err, resp.Trailer)
	}
}

func TestUpgradeIsSpliced(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") != "echo" || req.Header.Get("Connection") != "Upgrade" {
			w.WriteHeader(426)
			return
		}
		c, rw, _ := http.NewResponseController(w).Hijack()
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello ")
		io.Copy(c, rw)
		io.WriteString(c, " bye")
	})
	head := "GET /ws HTTP/1.1\r\nHost: 8080-" + sb.ID + ".x.y\r\n"
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, head+"Connection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly ")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "echo" || resp.Header.Get("Content-Length") != "" {
		t.Fatalf("%v %v", resp, err)
	}
	io.WriteString(c, "late")
	c.(*net.TCPConn).CloseWrite()
	if all, err := io.ReadAll(br); string(all) != "hello early late bye" || err != nil {
		t.Errorf("got %q, %v", all, err)
	}
	t.Run("refused", func(t *testing.T) {
		resp := rawExchange(t, r.addr, head+"Connection: Upgrade\r\nUpgrade: other\r\n\r\n")
		if resp.status != 426 {
			t.Errorf("status = %d", resp.status)
		}
	})
	t.Run("killed", func(t *testing.T) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, head+"Connection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		br := bufio.NewReader(c)
		if _, err := http.ReadResponse(br, nil); err != nil {
			t.Fatal(err)
		}
		r.call("DELETE", "/sandboxes/"+sb.ID, "")
		within(t, "end", func() { io.Copy(io.Discard, br) })
	})
}

func TestAgentNeverLeavesHTTP(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(true)
	r.node.serve(t, sb.ID, 49983, echo)
	resp := rawExchange(t, r.addr, "GET /health HTTP/1.1\r\nHost: 49983-"+sb.ID+".x.y\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPOST /init HTTP/1.1\r\n\r\n")
	if got := parse[echoed](t, resp.body); got.Header.Get("Upgrade") != "" || got.Header.Get("Connection") != "" {
		t.Errorf("the agent was asked to upgrade: %v", got.Header)
	}
}

func TestPanicEndsOneRequestOnly(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, whoami("ok"))
	r.gw.routes = append([]route{newRoute("GET", "/panic", func(*Server, *request) error { panic("boom") })}, r.gw.routes...)
	status, body, _ := r.call("GET", "/panic", "")
	if status != 500 || parse[apiError](t, body).Code != 500 || strings.Contains(body, "boom") {
		t.Errorf("%d %s", status, body)
	}
	if _, body, _ := r.do(r.data("GET", sb.ID, 8080, "/", nil)); body != "ok" {
		t.Errorf("after: %q", body)
	}
}

func TestConnectionOfOneSandboxIsNotUsedForAnother(t *testing.T) {
	r := newRig(t)
	a, b := r.sandbox(false), r.sandbox(false)
	r.node.serve(t, a.ID, 8080, whoami("a"))
	r.node.serve(t, b.ID, 8080, whoami("b"))
	var req bytes.Buffer
	for _, sb := range []node.Sandbox{a, b, a} {
		fmt.Fprintf(&req, "GET / HTTP/1.1\r\nHost: 8080-%s.x.y\r\n\r\n", sb.ID)
	}
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(req.Bytes())
	br := bufio.NewReader(c)
	for _, want := range []string{"a", "b", "a"} {
		if got := readRaw(t, br); got.body != want {
			t.Errorf("got %q, want %q", got.body, want)
		}
	}
}
