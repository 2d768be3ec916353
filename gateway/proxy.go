package gateway

import (
	"errors"
	"io"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

var (
	errTooManyInterim = errors.New("the server in the sandbox sent too many interim responses")
	// errStale says that a pooled connection turned out dead before it carried a byte of an answer.
	errStale = errors.New("the pooled connection was dead")
	// errClientGone says that there is nobody left to answer.
	errClientGone = errors.New("the client went away")
)

// proxy passes one request into a sandbox.
func (s *Server) proxy(ctx *fasthttp.RequestCtx, t target) {
	if err := s.admit(ctx, t); err != nil {
		s.refuse(ctx, t, err)
		return
	}
	if t.isAgent() && isPreflight(ctx) {
		answerPreflight(ctx) // without bothering the guest: preflights carry no token
		return
	}
	if err := s.forward(ctx, t); err != nil {
		s.refuse(ctx, t, err)
	}
}

// admit decides whether a request may go to its target.
func (s *Server) admit(ctx *fasthttp.RequestCtx, t target) error {
	sb, err := s.node.Get(t.id)
	if err != nil {
		return err
	}
	if sb.State != node.StateRunning {
		return node.ErrNotFound
	}
	if t.isAgent() && !isPreflight(ctx) {
		return checkAgentAccess(ctx, sb)
	}
	return nil
}

// forward exchanges the request for an answer. A request that can be repeated safely is, once, if the pooled
// connection it was sent on turns out to be dead.
func (s *Server) forward(ctx *fasthttp.RequestCtx, t target) error {
	var upgrade []byte
	if !t.isAgent() {
		// The agent speaks plain HTTP only, and a connection that left HTTP would escape the checks above.
		upgrade = upgradeTo(ctx)
	}
	l, err := s.upstreams.take(t, upgrade != nil)
	if err != nil {
		return err
	}
	err = s.exchange(ctx, t, l, upgrade)
	if errors.Is(err, errStale) && repeatable(ctx) {
		if l, err = s.upstreams.take(t, true); err != nil {
			return err
		}
		err = s.exchange(ctx, t, l, upgrade)
	}
	if err == nil {
		return nil
	}
	// A sandbox that ended meanwhile is not an unreachable one.
	if _, gone := s.node.Get(t.id); errors.Is(gone, node.ErrNotFound) {
		return gone
	}
	return err
}

// repeatable reports whether sending the request twice does no harm.
func repeatable(ctx *fasthttp.RequestCtx) bool {
	return (ctx.IsGet() || ctx.IsHead() || ctx.IsOptions()) && !hasBody(ctx)
}

func hasBody(ctx *fasthttp.RequestCtx) bool {
	n := ctx.Request.Header.ContentLength()
	return n > 0 || n == -1
}

// exchange sends the request over l and sets ctx's response. Errors come back only while nothing of the
// response was used; l is released in every case, if need be after the response's body has been sent.
func (s *Server) exchange(ctx *fasthttp.RequestCtx, t target, l *link, upgrade []byte) error {
	x := &exchange{ctx: ctx, link: l, conn: ctx.Conn()}
	x.watch = s.hangups.watch(x.conn, func() { l.conn.Close() })
	used := false
	defer func() {
		if !used { // an error, or a panic
			x.end(false)
		}
	}()
	writeRequestHead(l.w, ctx, t, upgrade)
	if err := x.sendBody(); err != nil {
		return x.failed(err)
	}
	h := &ctx.Response.Header
	err := readResponseHead(l.r, h)
	if err != nil {
		h.Reset()
		return x.failed(err)
	}
	if h.StatusCode() == fasthttp.StatusSwitchingProtocols {
		if upgrade == nil {
			return errors.New("the server in the sandbox changed protocols unasked")
		}
		x.splice()
		used = true
		return nil
	}
	x.reusable = stripHopByHop(h) && upgrade == nil
	err = x.answer()
	used = err == nil
	return err
}

// failed says what an error before the response means.
func (x *exchange) failed(err error) error {
	if uerr := x.upload.stop(); uerr != nil {
		return errorf(fasthttp.StatusBadRequest, "read body: %s", clip(uerr.Error(), 200))
	}
	if !x.watch.stop() {
		return errClientGone
	}
	if x.link.reused && x.link.r.Buffered() == 0 && (errors.Is(err, io.EOF) || isReset(err)) {
		return errStale
	}
	return err
}
