package gateway

import (
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"
)

// splice answers 101 and from then on moves bytes both ways until either side is done. The connection never
// comes back: what follows on it belongs to this sandbox, whatever Host it might name.
func (x *exchange) splice() {
	h := &x.ctx.Response.Header
	h.SetNoDefaultContentType(true)
	head := append([]byte(nil), h.Header()...)
	present := x.watch.stop() // the copying below notices for itself
	if !present {
		x.end(false)
		x.ctx.SetConnectionClose()
		return
	}
	client := x.conn
	x.ctx.HijackSetNoResponse(true)
	x.ctx.Hijack(func(c net.Conn) {
		defer x.end(false)
		if _, err := c.Write(head); err != nil {
			return
		}
		up := make(chan struct{})
		go func() {
			defer close(up)
			_, err := io.Copy(x.link.conn, c) // c yields first what the client had sent early
			endHalf(x.link.conn.Conn, err)
		}()
		_, err := io.Copy(client, x.link.r)
		endHalf(client, err)
		<-up
	})
}

// endHalf passes an end of stream on to c, whose own half then has a little time to end too. After a failure
// nothing is worth waiting for.
func endHalf(c net.Conn, err error) {
	half, ok := c.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		c.SetReadDeadline(longAgo)
		return
	}
	c.SetReadDeadline(time.Now().Add(spliceLinger))
}

// spliceLinger is how long one side of a spliced connection may go on after the other has ended.
const spliceLinger = 30 * time.Second

var _ fasthttp.BodyWriterTo = (*responseBody)(nil)
