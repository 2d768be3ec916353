package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// upload sends a request's body in a goroutine of its own, so that the answer can be read meanwhile. Its
// methods may be called on nil, which stands for a body that was sent in place.
type upload struct {
	client   net.Conn
	body     io.Reader
	guest    net.Conn
	w        *bufio.Writer
	chunked  bool
	finished chan struct{}
	// err is the client's failure to deliver its body; valid after finished is closed.
	err error
	// sent says that the guest got all of it; valid after finished is closed.
	sent bool
}

// uploadBytes is how much is read and written at a time.
const uploadBytes = 64 << 10

var uploadBuffers = sync.Pool{New: func() any { b := make([]byte, uploadBytes); return &b }}

func startUpload(ctx *fasthttp.RequestCtx, w *bufio.Writer, chunked bool, guest net.Conn) *upload {
	// The head had to arrive in time; a body may take as long as it likes.
	ctx.SetReadDeadline(time.Time{})
	u := &upload{client: ctx.Conn(), body: ctx.Request.BodyStream(), guest: guest, w: w, chunked: chunked,
		finished: make(chan struct{})}
	go u.run()
	return u
}

func (u *upload) run() {
	defer close(u.finished)
	defer func() {
		if p := recover(); p != nil {
			u.err = errors.New("internal error")
			u.guest.Close()
		}
	}()
	if err := u.w.Flush(); err != nil { // the head: the guest may act on it before there is a body
		return
	}
	buf := uploadBuffers.Get().(*[]byte)
	defer uploadBuffers.Put(buf)
	for {
		n, err := u.body.Read(*buf)
		if n > 0 {
			// A guest that stops reading may have answered already: leave the link for the answer.
			if u.write((*buf)[:n]) != nil {
				return
			}
		}
		switch {
		case err == io.EOF:
			u.sent = u.writeEnd() == nil
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			return // stop was called
		case err != nil:
			// The guest must not take half a body for a whole one.
			u.err = err
			u.guest.Close()
			return
		}
	}
}

func (u *upload) write(p []byte) error {
	if u.chunked {
		u.w.WriteString(strconv.FormatInt(int64(len(p)), 16))
		u.w.WriteString("\r\n")
	}
	u.w.Write(p)
	if u.chunked {
		u.w.WriteString("\r\n")
	}
	return u.w.Flush()
}

func (u *upload) writeEnd() error {
	if u.chunked {
		u.w.WriteString("0\r\n\r\n")
	}
	return u.w.Flush()
}

// done reports whether the guest has the whole body.
func (u *upload) done() bool {
	if u == nil {
		return true
	}
	select {
	case <-u.finished:
		return u.sent
	default:
		return false
	}
}

// settle is done after a short wait: a guest often answers when it has read what it needs, a moment before the
// end of the body has passed through here.
func (u *upload) settle(wait time.Duration) bool {
	if u.done() {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-u.finished:
		return u.sent
	case <-t.C:
		return false
	}
}

// stop ends the upload, waits for it, and returns the client's failure if that is what ended it.
func (u *upload) stop() error {
	if u == nil {
		return nil
	}
	select {
	case <-u.finished:
	default:
		u.client.SetReadDeadline(longAgo)
		u.guest.SetWriteDeadline(longAgo)
		<-u.finished
	}
	return u.err
}
