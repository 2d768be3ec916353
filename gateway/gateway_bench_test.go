package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// stubAgent answers like an agent whose commands take no time: a small unary reply, or a Connect stream of a
// start, a data and an end event, each flushed.
func stubAgent(ctx *fasthttp.RequestCtx) {
	if string(ctx.Path()) != "/process.Process/Start" {
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"entry":{"name":"hello.txt","type":"FILE_TYPE_FILE","path":"/home/user/hello.txt","size":"12"}}`)
		return
	}
	ctx.SetContentType("application/connect+json")
	ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		for _, event := range []string{`{"event":{"start":{"pid":7}}}`, `{"event":{"data":{"stdout":"aGVsbG8K"}}}`, `{"event":{"end":{"exited":true}}}`} {
			io.WriteString(w, event)
			w.Flush()
		}
	})
}

// arms are what a benchmark's client talks to: the stub itself, net/http's ReverseProxy, and the gateway, all
// on loopback TCP with the stub on a unix socket behind them.
func arms(b *testing.B) map[string]string {
	r := newRig(b)
	sb := r.sandbox(false)
	ln := r.node.listen(b, sb.ID, 49983)
	go fasthttp.Serve(ln, stubAgent)

	direct, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { direct.Close() })
	go fasthttp.Serve(direct, stubAgent)

	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", ln.Addr().String())
		},
		MaxIdleConnsPerHost: 1000, DisableCompression: true,
	}
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: proxy}
	go srv.Serve(peer)
	b.Cleanup(func() { srv.Close() })
	return map[string]string{"direct": direct.Addr().String(), "reverseproxy": peer.Addr().String(), "cella": r.addr}
}

// benchClient sends one request again and again on one connection and times each.
type benchClient struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
	resp    fasthttp.Response
	took    []time.Duration
}

func newBenchClient(b *testing.B, addr, path, contentType string) *benchClient {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	body := `{"path":"/home/user/hello.txt"}`
	return &benchClient{conn: c, r: bufio.NewReader(c), request: fmt.Appendf(nil,
		"POST %s HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: i00000000000000000001\r\nE2b-Sandbox-Port: 49983\r\n"+
			"Content-Type: %s\r\nConnect-Protocol-Version: 1\r\nUser-Agent: e2b-js-sdk/2.51.0\r\nContent-Length: %d\r\n\r\n%s",
		path, contentType, len(body), body)}
}

func (c *benchClient) once() error {
	start := time.Now()
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	if err := c.resp.Read(c.r); err != nil {
		return err
	}
	c.took = append(c.took, time.Since(start))
	if code := c.resp.StatusCode(); code != 200 {
		return fmt.Errorf("status %d: %s", code, c.resp.Body())
	}
	return nil
}

// measure runs b.N requests over n connections and reports quantiles of their times.
func measure(b *testing.B, addr string, n int, path, contentType string) {
	clients := make([]*benchClient, n)
	for i := range clients {
		clients[i] = newBenchClient(b, addr, path, contentType)
		for range 20 { // connections, buffers
			if err := clients[i].once(); err != nil {
				b.Fatal(err)
			}
		}
		clients[i].took = clients[i].took[:0]
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for range b.N/n + min(1, max(0, b.N%n-i)) {
				if err := c.once(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	var all []time.Duration
	for _, c := range clients {
		all = append(all, c.took...)
	}
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	b.ReportMetric(at(0.5), "p50-µs")
	b.ReportMetric(at(0.99), "p99-µs")
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "req/s")
}

// BenchmarkProxy compares the gateway with net/http's ReverseProxy and with no proxy at all, in one run:
//
//	go test ./gateway -run '^$' -bench Proxy -benchtime 20000x
func BenchmarkProxy(b *testing.B) {
	addrs := arms(b)
	for _, kind := range []struct{ name, path, contentType string }{
		{"unary", "/filesystem.Filesystem/Stat", "application/json"},
		{"stream", "/process.Process/Start", "application/connect+json"},
	} {
		for _, conns := range []int{1, 32, 256} {
			for _, arm := range []string{"direct", "reverseproxy", "cella"} {
				b.Run(fmt.Sprintf("%s/c=%d/%s", kind.name, conns, arm), func(b *testing.B) {
					measure(b, addrs[arm], conns, kind.path, kind.contentType)
				})
			}
		}
	}
}

// BenchmarkTransfer moves 64 MiB up and down through each arm.
func BenchmarkTransfer(b *testing.B) {
	const size = 64 << 20
	r := newRig(b)
	sb := r.sandbox(false)
	handler := func(w http.ResponseWriter, req *http.Request) {
		if req.Method == "POST" {
			io.Copy(io.Discard, req.Body)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		buf := make([]byte, 64<<10)
		for range size / len(buf) {
			w.Write(buf)
		}
	}
	r.node.serve(b, sb.ID, 49983, handler)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return r.node.Dial(ctx, sb.ID, 49983)
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: proxy}
	go srv.Serve(ln)
	b.Cleanup(func() { srv.Close() })
	for _, arm := range []struct{ name, addr string }{{"reverseproxy", ln.Addr().String()}, {"cella", r.addr}} {
		for _, kind := range []string{"upload", "upload-chunked", "download"} {
			b.Run(kind+"/"+arm.name, func(b *testing.B) {
				b.SetBytes(size)
				for range b.N {
					var body io.Reader
					method := "GET"
					if strings.HasPrefix(kind, "upload") {
						method, body = "POST", io.LimitReader(zeros{}, size)
					}
					req, _ := http.NewRequest(method, "http://"+arm.addr+"/files", body)
					req.Header.Set("E2b-Sandbox-Id", sb.ID)
					req.Header.Set("E2b-Sandbox-Port", "49983")
					if kind == "upload" {
						req.ContentLength = size
					}
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err != nil || resp.StatusCode != 200 || method == "GET" && n != size {
						b.Fatalf("%d, %d bytes, %v", resp.StatusCode, n, err)
					}
				}
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
