package gateway

import (
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// request is one control-plane call on its way through a handler.
type request struct {
	*fasthttp.RequestCtx
	// team is whose key was presented; empty on public routes.
	team string
	// params are the path's variable segments in order, unescaped.
	params []string
}

type handler func(*Server, *request) error

// route is one method of one path. A segment that begins with ':' matches anything.
type route struct {
	method   string
	segments []string
	public   bool
	handle   handler
}

func newRoute(method, pattern string, h handler) route {
	return route{method: method, segments: strings.Split(pattern[1:], "/"), handle: h}
}

// match reports whether path fits and returns its variable segments. Both are still escaped: SDKs send "/" and
// ":" inside a segment as %2F and %3A.
func (rt *route) match(path []string) ([]string, bool) {
	if len(path) != len(rt.segments) {
		return nil, false
	}
	var params []string
	for i, s := range rt.segments {
		if strings.HasPrefix(s, ":") {
			if path[i] == "" {
				return nil, false
			}
			params = append(params, path[i])
		} else if s != path[i] {
			return nil, false
		}
	}
	return params, true
}

// find returns the route for a method and escaped path. Fixed paths stand before variable ones in the table.
func (s *Server) find(method, path string) (*route, []string, error) {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	var allowed []string
	for i := range s.routes {
		rt := &s.routes[i]
		params, ok := rt.match(segments)
		if !ok {
			continue
		}
		if rt.method != method {
			allowed = append(allowed, rt.method)
			continue
		}
		for i, p := range params {
			u, err := url.PathUnescape(p)
			if err != nil {
				return nil, nil, errorf(fasthttp.StatusBadRequest, "path: %v", err)
			}
			params[i] = u
		}
		return rt, params, nil
	}
	if allowed == nil {
		return nil, nil, errorf(fasthttp.StatusNotFound, "no such path: %s", clip(path, 200))
	}
	slices.Sort(allowed)
	return nil, nil, &methodError{allowed: slices.Compact(allowed), method: method}
}

// methodError is a path that exists with other methods.
type methodError struct {
	allowed []string
	method  string
}

func (e *methodError) Error() string { return "method " + e.method + " is not allowed here" }

// control serves the REST API.
func (s *Server) control(ctx *fasthttp.RequestCtx) {
	allowAnyOrigin(ctx)
	if isPreflight(ctx) {
		answerPreflight(ctx)
		return
	}
	if err := s.serveRoute(ctx); err != nil {
		if e, ok := err.(*methodError); ok {
			ctx.Response.Header.Set("Allow", strings.Join(e.allowed, ", "))
			err = errorf(fasthttp.StatusMethodNotAllowed, "%v", e)
		}
		e := asAPIError(err)
		if e.Code >= 500 {
			s.log.Error("request failed", "method", string(ctx.Method()), "path", string(rawPath(ctx)), "err", err)
		}
		writeError(ctx, e)
	}
}

func (s *Server) serveRoute(ctx *fasthttp.RequestCtx) error {
	rt, params, err := s.find(string(ctx.Method()), string(rawPath(ctx)))
	if err != nil {
		return err
	}
	r := &request{RequestCtx: ctx, params: params}
	if !rt.public {
		if r.team, err = s.authenticate(ctx); err != nil {
			return err
		}
	}
	return rt.handle(s, r)
}

// rawPath is the path as the client escaped it, without the query. It is valid while ctx is.
func rawPath(ctx *fasthttp.RequestCtx) []byte {
	path, _ := splitURI(ctx.Request.Header.RequestURI())
	return path
}

// clip shortens s for a message, so that hostile input does not come back whole.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
