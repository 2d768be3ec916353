package gateway

import (
	"io"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// responseBody is a response's body on its way from the guest. The server reads it after the handler has
// returned, and closes it when it has been sent or could not be.
type responseBody struct {
	x *exchange
	// from holds the parser of the guest's body and, after its end, the trailers.
	from     *fasthttp.Response
	body     io.Reader
	complete bool
}

// stream sets a response body of n bytes, or of unknown size if n is negative, that flows as it comes.
func (x *exchange) stream(n int) {
	resp := &x.ctx.Response
	from := fasthttp.AcquireResponse()
	resp.Header.CopyTo(&from.Header)
	from.StreamBody = true
	from.ReadBody(x.link.r, 0) // sets the stream and reads nothing yet
	if n == -2 {
		x.reusable = false // it ends with the connection
	}
	if !x.upload.settle(2 * time.Millisecond) {
		// The client may never finish its half: this connection can't find its next request.
		resp.Header.SetConnectionClose()
	}
	resp.SetBodyStream(&responseBody{x: x, from: from, body: from.BodyStream()}, max(n, -1))
	// A stream's head must not wait for its first byte. Set last: reading a head resets it.
	resp.ImmediateHeaderFlush = true
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err == io.EOF {
		b.complete = true
		b.passTrailers()
	}
	return n, err
}

// passTrailers copies what the guest announced in its Trailer header and sent after the body.
func (b *responseBody) passTrailers() {
	to := &b.x.ctx.Response.Header
	for _, key := range to.PeekTrailerKeys() {
		if v := b.from.Header.PeekBytes(key); len(v) > 0 {
			to.SetBytesKV(key, v)
		}
	}
}

// streamBuffers are larger than fasthttp's own of 4 KiB, which would cost a system call for each of those.
var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// SupportsBodyWriteTo makes the server use WriteTo.
func (b *responseBody) SupportsBodyWriteTo() bool { return true }

// WriteTo passes the body on piece by piece, as pieces come.
func (b *responseBody) WriteTo(w io.Writer) (total int64, err error) {
	buf := streamBuffers.Get().(*[]byte)
	defer streamBuffers.Put(buf)
	for {
		n, err := b.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// CloseWithError ends the exchange. A body cut short makes the server break the client's connection, so that
// nobody takes a part for the whole.
func (b *responseBody) CloseWithError(error) error {
	if b.x.ended {
		return nil
	}
	if !b.complete {
		b.x.link.conn.Close()
	}
	b.from.CloseBodyStream()
	fasthttp.ReleaseResponse(b.from)
	b.x.end(b.complete)
	return nil
}
