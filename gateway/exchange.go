package gateway

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// inlineBody is the largest request body sent without a goroutine of its own. fasthttp has read that much
// before it calls the handler, so sending it can't wait for the client.
const inlineBody = 8 << 10

// smallBody is the largest response body that is passed on in one piece.
const smallBody = 64 << 10

// exchange is one request and its response on the way through the gateway.
//
//	client ──body──▶ upload ──▶ link ──▶ guest
//	client ◀──responseBody◀──── link ◀── guest
//
// Both directions run at once where the request's body is large or unbounded; hangups breaks the link when the
// client goes away.
type exchange struct {
	ctx  *fasthttp.RequestCtx
	conn net.Conn
	link *link
	// watch may be nil.
	watch *hangup
	// upload sends the request's body; nil if that was done in place.
	upload *upload
	// reusable says that the guest's side of the link allows another request.
	reusable bool
	ended    bool
}

// sendBody sends the head written before and the body, or starts an upload for it.
func (x *exchange) sendBody() error {
	n := x.ctx.Request.Header.ContentLength()
	if n == -1 || n > inlineBody {
		x.upload = startUpload(x.ctx, x.link.w, n == -1, x.link.conn)
		return nil
	}
	if body := x.ctx.Request.BodyStream(); body != nil && n > 0 {
		if _, err := io.CopyN(x.link.w, body, int64(n)); err != nil {
			return err
		}
	}
	return x.link.w.Flush()
}

// answer sets the response from the head that was read and the body to come.
func (x *exchange) answer() error {
	resp := &x.ctx.Response
	n := resp.Header.ContentLength()
	code := resp.StatusCode()
	switch {
	case x.ctx.IsHead(), code == fasthttp.StatusNoContent, code == fasthttp.StatusNotModified, n == 0:
		x.finish()
	case n > 0 && n <= smallBody && x.link.r.Buffered() >= n:
		// Whole already, so reading it can't wait for the guest.
		if err := resp.ReadBody(x.link.r, n); err != nil {
			return err
		}
		x.finish()
	default:
		x.stream(n)
	}
	return nil
}

// finish ends an exchange whose response is complete. If the guest answered before it had the whole request,
// the rest is of no use to anybody; the client still has to get the answer.
func (x *exchange) finish() {
	early := !x.upload.settle(50 * time.Millisecond)
	x.end(true)
	if early {
		replyThenLinger(x.ctx)
	}
}

// end releases what the exchange holds. complete says that the response was read to its end.
func (x *exchange) end(complete bool) {
	if x.ended {
		return
	}
	x.ended = true
	sent := x.upload.done()
	x.upload.stop()
	present := x.watch.stop()
	x.link.release(complete && sent && present && x.reusable)
}

// isReset reports whether err says that the peer has gone.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// longAgo is a deadline that makes a blocked read return.
var longAgo = time.Unix(1, 0)
