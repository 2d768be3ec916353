package node

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/wire"
)

// maxReply bounds what the host reads of a guest's answer on a control or forward connection.
const maxReply = 4096

// listenVsock makes the socket on which a worker accepts connections into its guest. The worker gets the
// descriptor, everyone else dials the name; connections made before it listens wait in the backlog.
func listenVsock(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("create vsock listener: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		f.Close()
		return nil, fmt.Errorf("bind vsock listener %s: %w", name, err)
	}
	if err := unix.Listen(fd, 1024); err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return f, nil
}

// guestConn is a stream into a guest. Reads go through the buffer that took the answer to CONNECT, which may
// hold the first bytes of what follows it.
type guestConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *guestConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite tells the guest that no more will be sent.
func (c *guestConn) CloseWrite() error { return c.Conn.(*net.UnixConn).CloseWrite() }

// dialVsock opens a stream to a vsock port of the guest behind socket, sending early right behind the
// request, before the guest has answered: one round trip less.
func dialVsock(ctx context.Context, socket string, port int, early []byte) (*guestConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("dial guest: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	c := &guestConn{Conn: conn, r: bufio.NewReaderSize(conn, maxReply)}
	hello := append([]byte("CONNECT "+strconv.Itoa(port)+"\n"), early...)
	if _, err = conn.Write(hello); err == nil {
		err = c.expectOK()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("dial guest port %d: %w", port, err)
	}
	return c, nil
}

// errRefused is a guest's "ERR reason" answer.
var errRefused = errors.New("refused")

// expectOK reads one line, "OK…" or "ERR reason".
func (c *guestConn) expectOK() error {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	s := strings.TrimRight(string(line), "\n")
	if s == "OK" || strings.HasPrefix(s, "OK ") {
		return nil
	}
	return fmt.Errorf("%w: %.100q", errRefused, strings.TrimPrefix(s, "ERR "))
}

// control sends one request to the guest's agent and reads its reply.
func control(ctx context.Context, socket string, req wire.ControlRequest) (wire.ControlReply, error) {
	var reply wire.ControlReply
	data, err := json.Marshal(req)
	if err != nil {
		return reply, err
	}
	conn, err := dialVsock(ctx, socket, wire.PortControl, append(data, '\n'))
	if err != nil {
		return reply, fmt.Errorf("%s: %w", req.Op, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewDecoder(io.LimitReader(conn, maxReply)).Decode(&reply); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return reply, fmt.Errorf("%s: read the agent's reply: %w", req.Op, err)
	}
	if !reply.OK {
		return reply, fmt.Errorf("%s: the agent answered: %.200q", req.Op, reply.Error)
	}
	return reply, nil
}

// bootRetry is how often a guest that is booting is asked whether its agent listens yet. Until then its kernel
// refuses the connection.
const bootRetry = 5 * time.Millisecond

// controlBooting is control for a guest that may still be booting. An init gets the time of each attempt.
func controlBooting(ctx context.Context, socket string, req wire.ControlRequest) (wire.ControlReply, error) {
	for {
		if req.Init != nil {
			req.Init.UnixNano = time.Now().UnixNano()
		}
		reply, err := control(ctx, socket, req)
		if !errors.Is(err, errRefused) {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return reply, fmt.Errorf("the guest's agent did not answer: %w", ctx.Err())
		case <-time.After(bootRetry):
		}
	}
}

// newInit fills in what must be new for each clone.
func newInit(s *sandbox, t *template, env map[string]string) *wire.Init {
	entropy := make([]byte, 64)
	rand.Read(entropy)
	return &wire.Init{
		UnixNano: time.Now().UnixNano(), Entropy: entropy, Generation: s.ID,
		SandboxID: s.ID, TemplateID: t.ID, AccessToken: s.AccessToken, Env: env,
		DefaultUser: t.DefaultUser, DefaultWorkdir: t.DefaultWorkdir,
	}
}

// Dial opens a stream to a TCP port inside a sandbox, or to the agent (wire.PortAgent). The error wraps
// ErrNotFound where there is no such running sandbox and ErrPortClosed where nothing listens.
func (n *Node) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	s, err := n.running(id)
	if err != nil {
		return nil, err
	}
	if port == wire.PortAgent {
		return s.dialPort(ctx, wire.PortAgent, nil)
	}
	conn, err := s.dialPort(ctx, wire.PortForward, []byte(strconv.Itoa(port)+"\n"))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = conn.expectOK()
	stop()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%w: port %d of %s: %w", ErrPortClosed, port, id, err)
	}
	return conn, nil
}

// dialPort opens a stream to a vsock port. A guest that refuses says so; any other failure means that its VMM is
// ending, whether or not it has been reaped yet.
func (s *sandbox) dialPort(ctx context.Context, port int, early []byte) (*guestConn, error) {
	conn, err := dialVsock(ctx, s.socket, port, early)
	if err != nil && ctx.Err() == nil && !errors.Is(err, errRefused) {
		err = fmt.Errorf("%w: %s has ended: %w", ErrNotFound, s.ID, err)
	}
	return conn, err
}
