package rpc

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"
)

// A Call is what a method may know of the HTTP request that carries it.
type Call struct {
	Header http.Header
	// Timeout is the client's Connect-Timeout-Ms, 0 if it sent none.
	Timeout time.Duration
}

// defaultKeepAlive is used when the client asks for no interval of its own.
const defaultKeepAlive = 90 * time.Second

// KeepAlive is how often the client wants an idle stream to be pinged (Keepalive-Ping-Interval, seconds).
func (c *Call) KeepAlive() time.Duration {
	n, err := strconv.Atoi(c.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || n <= 0 || n > 3600 {
		return defaultKeepAlive
	}
	return time.Duration(n) * time.Second
}

// callOf reads a request's protocol headers.
func callOf(r *http.Request) (*Call, error) {
	call := &Call{Header: r.Header}
	if v := r.Header.Get("Connect-Protocol-Version"); v != "" && v != "1" {
		return nil, Errorf(InvalidArgument, "Connect-Protocol-Version is %q; this server speaks 1", v)
	}
	if v := r.Header.Get("Connect-Timeout-Ms"); v != "" {
		ms, err := strconv.ParseUint(v, 10, 64)
		if err != nil || len(v) > 10 {
			return nil, Errorf(InvalidArgument, "Connect-Timeout-Ms is %q; it takes up to ten digits", v)
		}
		call.Timeout = time.Duration(ms) * time.Millisecond
	}
	return call, nil
}

// open checks the method and media type of a call, and answers itself if they don't fit.
func open(w http.ResponseWriter, r *http.Request, wantStream bool) (codec, bool) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil, false
	}
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	c, stream, ok := codecFor(mediaType)
	if !ok || stream != wantStream {
		accept := "application/json, application/proto"
		if wantStream {
			accept = "application/connect+json, application/connect+proto"
		}
		w.Header().Set("Accept-Post", accept)
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return nil, false
	}
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	return c, true
}

// Unary serves a method with one request and one reply.
func Unary[Req, Res any](method func(*http.Request, *Call, *Req) (*Res, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := open(w, r, false)
		if !ok {
			return
		}
		reply, err := callUnary(c, r, method)
		if err != nil {
			WriteError(w, err)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
		w.Write(reply)
	})
}

func callUnary[Req, Res any](c codec, r *http.Request, method func(*http.Request, *Call, *Req) (*Res, error)) ([]byte, error) {
	call, err := callOf(r)
	if err != nil {
		return nil, err
	}
	body, err := readUnary(r)
	if err != nil {
		return nil, err
	}
	req := new(Req)
	if err := c.unmarshal(body, req); err != nil {
		return nil, Errorf(InvalidArgument, "unmarshal message: %v", err)
	}
	res, err := method(r, call, req)
	if err != nil {
		return nil, err
	}
	return c.marshal(res)
}

// readUnary reads a whole request body, unzipped if it is gzip, up to MaxMessageBytes.
func readUnary(r *http.Request) ([]byte, error) {
	var src io.Reader = r.Body
	switch enc := r.Header.Get("Content-Encoding"); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(src)
		if err != nil {
			return nil, Errorf(InvalidArgument, "body is not gzip: %v", err)
		}
		src = z
	default:
		return nil, Errorf(Unimplemented, "Content-Encoding %q is not supported; use gzip or none", enc)
	}
	body, err := io.ReadAll(io.LimitReader(src, MaxMessageBytes+1))
	if err != nil {
		return nil, Errorf(InvalidArgument, "read body: %v", err)
	}
	if len(body) > MaxMessageBytes {
		return nil, Errorf(ResourceExhausted, "body is larger than %d bytes", MaxMessageBytes)
	}
	return body, nil
}

// WriteError answers a unary call with err: its Connect JSON under the status that its code maps to.
func WriteError(w http.ResponseWriter, err error) {
	e := toWire(err)
	body, _ := json.Marshal(e) // two strings always marshal
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	status, ok := httpStatus[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	w.Write(body)
}

// A Sender writes the replies of a stream. It is for one goroutine.
type Sender[Res any] struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	codec codec
	buf   []byte
}

// Send queues one message; Flush makes sure that it leaves.
func (s *Sender[Res]) Send(msg *Res) error {
	payload, err := s.codec.marshal(msg)
	if err != nil {
		return fmt.Errorf("marshal message: %w", err)
	}
	return s.frame(0, payload)
}

// Flush pushes what was sent to the client.
func (s *Sender[Res]) Flush() error { return s.ctl.Flush() }

func (s *Sender[Res]) frame(flags byte, payload []byte) error {
	s.buf = appendFrame(s.buf[:0], flags, payload)
	_, err := s.w.Write(s.buf)
	return err
}

// end closes the stream the protocol's way: the HTTP status is 200 already, so errors go in the last frame.
func (s *Sender[Res]) end(err error) {
	trailer := []byte("{}")
	if err != nil {
		trailer, _ = json.Marshal(struct {
			Error *wireError `json:"error"`
		}{toWire(err)})
	}
	if s.frame(flagEnd, trailer) == nil {
		s.Flush()
	}
}

// ServerStream serves a method with one request and any number of replies.
func ServerStream[Req, Res any](method func(*http.Request, *Call, *Req, *Sender[Res]) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := open(w, r, true)
		if !ok {
			return
		}
		s := &Sender[Res]{w: w, ctl: http.NewResponseController(w), codec: c}
		s.end(func() error {
			call, err := callOf(r)
			if err != nil {
				return err
			}
			req := new(Req)
			if err := receive(c, r.Body, req); err != nil {
				if errors.Is(err, io.EOF) {
					return Errorf(InvalidArgument, "stream holds no message")
				}
				return err
			}
			// net/http notices that the client left only once the body has been read to its end.
			if _, err := io.CopyN(io.Discard, r.Body, 1); err == nil {
				return Errorf(InvalidArgument, "stream holds more than one message")
			}
			return method(r, call, req, s)
		}())
	})
}

// ClientStream serves a method that reads any number of requests and replies once. next returns io.EOF
// after the last request.
func ClientStream[Req, Res any](method func(r *http.Request, call *Call, next func() (*Req, error)) (*Res, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := open(w, r, true)
		if !ok {
			return
		}
		s := &Sender[Res]{w: w, ctl: http.NewResponseController(w), codec: c}
		s.end(func() error {
			call, err := callOf(r)
			if err != nil {
				return err
			}
			res, err := method(r, call, func() (*Req, error) {
				req := new(Req)
				return req, receive(c, r.Body, req)
			})
			if err != nil {
				return err
			}
			return s.Send(res)
		}())
	})
}

// receive reads the next message of a stream.
func receive(c codec, body io.Reader, msg any) error {
	flags, payload, err := readFrame(body)
	if err != nil {
		return err
	}
	if flags&flagEnd != 0 {
		return io.EOF
	}
	if err := c.unmarshal(payload, msg); err != nil {
		return Errorf(InvalidArgument, "unmarshal message: %v", err)
	}
	return nil
}
