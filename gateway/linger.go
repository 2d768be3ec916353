package gateway

import (
	"bytes"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	// lingerTime bounds how long an answered client may go on sending.
	lingerTime = 5 * time.Second
	// lingerBytes bounds how much of it is read and thrown away.
	lingerBytes = 64 << 20
	// settleBytes and settleTime bound what is read to keep a connection usable.
	settleBytes = 1 << 20
	settleTime  = 2 * time.Second
)

// settleBody reads what is left of a request body nobody wanted, if that is little, so that the connection can
// carry the next request. It reports false if there is too much: then the connection has to be closed.
func settleBody(ctx *fasthttp.RequestCtx) bool {
	stream := ctx.Request.BodyStream()
	if stream == nil {
		return true
	}
	if ctx.Request.Header.ContentLength() > settleBytes {
		return false
	}
	ctx.SetReadDeadline(time.Now().Add(settleTime))
	_, err := io.CopyN(io.Discard, stream, settleBytes+1)
	return err == io.EOF
}

// replyThenLinger sends ctx's response now and closes the connection only after the client has stopped
// sending. Closing at once would make the kernel answer the bytes still in flight with a reset, which destroys
// the response before the client has read it (RFC 9112 §9.6).
func replyThenLinger(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetConnectionClose()
	var reply bytes.Buffer
	if _, err := ctx.Response.WriteTo(&reply); err != nil {
		return // only a body stream can fail, and errors have none
	}
	half, canHalfClose := ctx.Conn().(interface{ CloseWrite() error })
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) {
		c.SetDeadline(time.Now().Add(lingerTime))
		if _, err := c.Write(reply.Bytes()); err != nil {
			return
		}
		if canHalfClose {
			half.CloseWrite()
		}
		io.Copy(io.Discard, io.LimitReader(c, lingerBytes))
	})
}
