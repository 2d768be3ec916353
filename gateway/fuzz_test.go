package gateway

import (
	"bufio"
	"net/url"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// FuzzTarget: whatever host and headers say, a target is well-formed or an error.
func FuzzTarget(f *testing.F) {
	for _, host := range []string{"49983-i0abc.example.com", "localhost:3000", "[::1]:3000", "1-a-b.x.", "99999-a.b", "-a.b", "sandbox.x", ""} {
		f.Add(host, "i0abc", "49983")
		f.Add(host, "", "")
	}
	s := &Server{domain: testDomain, node: &fakeNode{}}
	f.Fuzz(func(t *testing.T, host, id, port string) {
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.SetHost(host)
		ctx.Request.Header.Set(headerSandboxID, id)
		ctx.Request.Header.Set(headerSandboxPort, port)
		target, isData, err := s.findTarget(&ctx)
		if err == nil && isData && (!validID([]byte(target.id)) || target.port < 1 || target.port > 65535) {
			t.Errorf("%q %q %q became %+v", host, id, port, target)
		}
		if !isData && err != nil {
			t.Errorf("control plane with error %v", err)
		}
	})
}

// FuzzListQuery: no query panics, and an accepted one is within bounds.
func FuzzListQuery(f *testing.F) {
	f.Add("metadata=k%252520e%252526y%3Dv&limit=5&order=asc")
	f.Add("nextToken=MjAyNi0wMS0wMVQwMDowMDowMFpfX2kxX19hc2M%3D&order=asc&state=running,paused")
	f.Fuzz(func(t *testing.T, query string) {
		if strings.ContainsAny(query, "\r\n\x00 ") {
			return
		}
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.SetRequestURI("/v2/sandboxes?" + query)
		q, err := parseListQuery(&ctx)
		if err == nil && (q.limit < 1 || q.limit > maxPage) {
			t.Errorf("%q: limit %d", query, q.limit)
		}
	})
}

// FuzzAgentAccess: no spelling of an internal route gets through, even with the right token.
func FuzzAgentAccess(f *testing.F) {
	for _, uri := range []string{"/init", "/%69nit", "//init", "/a/../init/", "/files?path=/init", "http://x/init", "*", "/health"} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		var h fasthttp.RequestHeader
		raw := "POST " + uri + " HTTP/1.1\r\nHost: x\r\nX-Access-Token: t\r\n\r\n"
		if err := h.Read(bufio.NewReader(strings.NewReader(raw))); err != nil || strings.ContainsAny(uri, " \r\n") {
			return
		}
		var ctx fasthttp.RequestCtx
		h.CopyTo(&ctx.Request.Header)
		if checkAgentAccess(&ctx, sandboxWithToken) != nil {
			return
		}
		u, err := url.ParseRequestURI(string(originForm(h.RequestURI())))
		if err != nil {
			return // the agent's own parser refuses it
		}
		if internalRoutes[strings.TrimRight(u.Path, "/")] {
			t.Errorf("%q reached the agent as %s", uri, u.Path)
		}
	})
}

var sandboxWithToken = node.Sandbox{ID: "i0", AccessToken: "t", State: node.StateRunning}
