package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// forwardHeadTimeout bounds how long the port number may take to arrive.
	forwardHeadTimeout = 10 * time.Second
	// forwardDialTimeout bounds connecting to a port; on loopback it is refused at once or accepted.
	forwardDialTimeout = 5 * time.Second
)

// halfCloser is a connection whose directions end separately, as TCP's and vsock's do.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// ServeForward takes connections to the sandbox's own ports, until l is closed.
func (a *Agent) ServeForward(l net.Listener) error {
	return a.acceptEach(l, a.handleForward)
}

// handleForward reads "PORT\n", connects, answers "OK\n" or "ERR reason\n", and splices.
func (a *Agent) handleForward(conn net.Conn) {
	defer conn.Close()
	if !a.gate.open.Load() {
		io.WriteString(conn, "ERR sandbox is not initialized yet\n")
		return
	}
	conn.SetReadDeadline(time.Now().Add(forwardHeadTimeout))
	// The client may send its first bytes along with the port, so what is read ahead must not be lost.
	in := bufio.NewReaderSize(conn, 4<<10)
	target, err := dialLine(in)
	if err != nil {
		fmt.Fprintf(conn, "ERR %s\n", oneLine(err))
		return
	}
	defer target.Close()
	conn.SetReadDeadline(time.Time{})
	if _, err := io.WriteString(conn, "OK\n"); err != nil {
		return
	}
	splice(conn, in, target)
}

// dialLine reads the port and connects to it, over IPv4 or IPv6 loopback.
func dialLine(in *bufio.Reader) (*net.TCPConn, error) {
	var line []byte
	for len(line) < len("65535\n") {
		b, err := in.ReadByte()
		if err != nil {
			return nil, fmt.Errorf("read port: %w", err)
		}
		line = append(line, b)
		if b == '\n' {
			break
		}
	}
	port, err := strconv.ParseUint(strings.TrimSuffix(string(line), "\n"), 10, 16)
	if err != nil || port == 0 || line[len(line)-1] != '\n' {
		return nil, fmt.Errorf("port is %q; send a number from 1 to 65535 and a newline", line)
	}
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		addr := net.JoinHostPort(host, strconv.FormatUint(port, 10))
		conn, err := net.DialTimeout("tcp", addr, forwardDialTimeout)
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// splice copies both ways until both have ended. The end of one direction is passed on while the other
// goes on: a client may shut its side down and still wait for the answer.
func splice(client net.Conn, fromClient io.Reader, target *net.TCPConn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, err := io.Copy(target, fromClient)
		endWrite(target, err)
	})
	both.Go(func() {
		_, err := io.Copy(client, target)
		endWrite(client, err)
	})
	both.Wait()
}

// endWrite passes an end on: an orderly one as an end, a broken one by breaking conn too, so that the
// other direction doesn't wait for a peer that has gone.
func endWrite(conn net.Conn, err error) {
	if err != nil && !errors.Is(err, os.ErrClosed) {
		conn.Close()
		return
	}
	if h, ok := conn.(halfCloser); ok {
		h.CloseWrite()
		return
	}
	conn.Close()
}

// oneLine keeps a reason within the reply's single line.
func oneLine(err error) string {
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(err.Error())
}
