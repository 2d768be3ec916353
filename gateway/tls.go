package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// handshakeTime bounds a TLS handshake.
const handshakeTime = 10 * time.Second

// ServeTLS answers on ln under TLS until Shutdown, and then returns nil. SDKs prefer HTTP/2, of which fasthttp
// knows nothing, so connections are split by what the handshake agreed on:
//
//	http/1.1 ───────────────────────────────▶ the gateway
//	h2 ──▶ net/http ──HTTP/1.1, socket pairs──▶ the gateway
//
// so that one code decides about every request.
func (s *Server) ServeTLS(ln net.Listener, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	h1, h2 := newHandOver(ln.Addr()), newHandOver(ln.Addr())
	front := s.newHTTP2Server()
	defer front.Close()
	defer h1.Close()
	defer h2.Close()
	go front.Serve(h2)
	go s.http.Serve(h1)
	// Shutdown closes h1 with the other listeners; this one is not fasthttp's.
	unhook := context.AfterFunc(h1.life, func() { ln.Close() })
	defer unhook()
	for {
		c, err := ln.Accept()
		if err != nil {
			if h1.life.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			t := tls.Server(c, config)
			ctx, cancel := context.WithTimeout(s.background, handshakeTime)
			defer cancel()
			if err := t.HandshakeContext(ctx); err != nil {
				c.Close()
				return
			}
			if t.ConnectionState().NegotiatedProtocol == "h2" {
				h2.give(t)
			} else {
				h1.give(t)
			}
		}()
	}
}

// newHTTP2Server translates HTTP/2 for the gateway. Paths, queries and hosts go through unchanged.
func (s *Server) newHTTP2Server() *http.Server {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "gateway"
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:         func(context.Context, string, string) (net.Conn, error) { return s.dialSelf() },
			MaxIdleConnsPerHost: 1000,
			IdleConnTimeout:     upstreamIdle,
			DisableCompression:  true,
			ReadBufferSize:      headBytes,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return &http.Server{
		Handler:           proxy,
		ErrorLog:          log.New(io.Discard, "", 0),
		ReadHeaderTimeout: s.http.ReadTimeout,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000},
	}
}

// translated is the gateway's end of a connection from the HTTP/2 front. What its X-Forwarded headers say is
// the front's word.
type translated struct{ *net.UnixConn }

// dialSelf makes a connection to the gateway itself. It is a socket pair and not a pipe in memory, because a
// hang-up must be visible to the kernel.
func (s *Server) dialSelf() (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, err := connOf(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, err
	}
	theirs, err := connOf(fds[1])
	if err != nil {
		ours.Close()
		return nil, err
	}
	go s.http.ServeConn(translated{theirs})
	return ours, nil
}

func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer f.Close() // FileConn has a descriptor of its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// handOver is a listener that accepts what it is given.
type handOver struct {
	addr  net.Addr
	conns chan net.Conn
	life  context.Context
	end   context.CancelFunc
}

func newHandOver(addr net.Addr) *handOver {
	h := &handOver{addr: addr, conns: make(chan net.Conn)}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

func (h *handOver) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.life.Done():
		c.Close()
	}
}

func (h *handOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.life.Done():
		return nil, net.ErrClosed
	}
}

func (h *handOver) Close() error   { h.end(); return nil }
func (h *handOver) Addr() net.Addr { return h.addr }
