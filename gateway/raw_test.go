package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// pipelined sends bytes on one connection, ends its half of it, and returns the statuses of all answers.
func pipelined(t *testing.T, addr, request string) []int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	go func() {
		io.WriteString(c, request)
		c.(*net.TCPConn).CloseWrite()
	}()
	var statuses []int
	br := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return statuses
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return statuses
		}
		statuses = append(statuses, resp.StatusCode)
	}
}

func TestUnreadBodiesAreNotRequests(t *testing.T) { // C26
	const hidden = "DELETE /sandboxes/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, c := range []struct {
		name, request string
		want          []int
		// runs is how often each handler may run.
		kills int32
	}{
		{"length, then another request",
			fmt.Sprintf("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden) + "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
			[]int{404, 204}, 0},
		{"chunked, then another request",
			fmt.Sprintf("POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden) + "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
			[]int{404, 204}, 0},
		{"a GET with a body",
			fmt.Sprintf("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden) + "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
			[]int{204, 204}, 0},
		{"both framings: chunked counts and the connection ends",
			fmt.Sprintf("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", 5+len(hidden), hidden),
			[]int{404}, 0},
		{"two lengths", "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 90\r\n\r\nx" + hidden, []int{400}, 0},
		{"a signed length", "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nxxxxx" + hidden, []int{400}, 0},
		{"obscured chunking", "POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden, []int{400}, 0},
		{"space before the colon", "POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden, []int{400}, 0},
		{"two hosts", "GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", []int{400}, 0},
		{"bad chunk size", "POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: KEY\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + hidden, []int{400}, 0},
		{"plain requests in a row", "GET /health HTTP/1.1\r\nHost: x\r\n\r\nDELETE /sandboxes/hidden HTTP/1.1\r\nHost: x\r\n\r\n", []int{204, 404}, 1},
		{"bad escape in the path", "GET /sandboxes/a%zz HTTP/1.1\r\nHost: x\r\nX-API-Key: KEY\r\n\r\n", []int{400}, 0},
		{"absolute form", "GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n", []int{204}, 0},
		{"line break in a header", "GET /health HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n", []int{204}, 0},
		{"not HTTP", "hello\r\n\r\n", []int{400}, 0},
		{"a head of 60 KB", "GET /health HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 60_000) + "\r\n\r\n", []int{204}, 0},
		{"a head of 100 KB", "GET /health HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 100_000) + "\r\n\r\n", []int{431}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			var kills atomic.Int32
			r.gw.routes = append([]route{{method: "DELETE", segments: []string{"sandboxes", "hidden"}, public: true,
				handle: func(*Server, *request) error { kills.Add(1); return errorf(404, "") }}}, r.gw.routes...)
			got := pipelined(t, r.addr, strings.ReplaceAll(c.request, "KEY", r.key))
			if fmt.Sprint(got) != fmt.Sprint(c.want) || kills.Load() != c.kills {
				t.Errorf("answers %v and %d hidden calls; want %v and %d", got, kills.Load(), c.want, c.kills)
			}
		})
	}
}

func TestUnreadBodiesInTheDataPlane(t *testing.T) { // C26
	r := newRig(t)
	sb := r.sandbox(false)
	var paths []string
	r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, req *http.Request) {
		paths = append(paths, req.URL.Path) // never reads the body
	})
	const hidden = "GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
	host := "8080-" + sb.ID + ".x.y"
	request := fmt.Sprintf("POST /one HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", host, len(hidden), hidden) +
		fmt.Sprintf("POST /two HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", host, len(hidden), hidden) +
		fmt.Sprintf("GET /three HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, request)
	for br, i := bufio.NewReader(c), 0; i < 3; i++ {
		if got := readRaw(t, br); got.status != 200 {
			t.Errorf("answer %d: %+v", i, got)
		}
	}
	if got := strings.Join(paths, " "); got != "/one /two /three" {
		t.Errorf("the guest ran %s", got)
	}
}

func TestSlowHeadsAreCutOff(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HeadTimeout = 50 * time.Millisecond })
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\nA: ")
	within(t, "answer to a head that never ends", func() {
		if got := readRaw(t, bufio.NewReader(c)); got.status != 408 {
			t.Errorf("status = %d %s, want 408", got.status, got.body)
		}
	})
}

func TestSlowUploadsAreNot(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HeadTimeout = 50 * time.Millisecond })
	sb := r.sandbox(false)
	r.node.serve(t, sb.ID, 8080, echo)
	pr, pw := io.Pipe()
	go func() {
		for range 4 {
			io.WriteString(pw, "x")
			time.Sleep(40 * time.Millisecond) // not a wait for an event: the slowness is what is tested
		}
		pw.Close()
	}()
	if _, body, _ := r.do(r.data("POST", sb.ID, 8080, "/", pr)); parse[echoed](t, body).Body != "xxxx" {
		t.Errorf("got %s", body)
	}
}

func TestIdleConnectionsDoNotGetInTheWay(t *testing.T) {
	r := newRig(t)
	conns := make([]net.Conn, 500)
	for i := range conns {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	if status, _, _ := r.call("GET", "/health", ""); status != 204 {
		t.Errorf("status = %d", status)
	}
}

func TestThousandSilentStreams(t *testing.T) {
	r := newRig(t)
	sb := r.sandbox(false)
	var live atomic.Int32
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/ping" {
			io.WriteString(w, "pong")
			return
		}
		live.Add(1)
		defer live.Add(-1)
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	})
	const n = 1000
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /stream HTTP/1.1\r\nHost: 49983-%s.x.y\r\n\r\n", sb.ID)
		conns[i] = c
	}
	for _, c := range conns {
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
	}
	if _, body, _ := r.do(r.data("GET", sb.ID, 49983, "/ping", nil)); body != "pong" || live.Load() != n {
		t.Errorf("%q with %d streams", body, live.Load())
	}
	for _, c := range conns {
		c.Close()
	}
	within(t, "end of all streams", func() {
		for live.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
}
