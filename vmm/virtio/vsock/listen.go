package vsock

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxLine is the longest first line: "CONNECT 4294967295\n" and some slack.
const maxLine = 32

// earlyBytes is how much is read together with the first line. More waits in the socket.
const earlyBytes = 4096

// errAborted is what clients that wait get when CloseAll is called.
var errAborted = errors.New("all connections were closed")

// Serve accepts host clients until the listener is closed, then returns nil. Clients may come before the
// device is active. Call it once per listener.
func (d *Device) Serve(l *net.UnixListener) error {
	for {
		sock, err := l.AcceptUnix()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			time.Sleep(10 * time.Millisecond) // there is no event for a free descriptor
			continue
		case errors.Is(err, unix.ECONNABORTED):
			continue
		default:
			return fmt.Errorf("accept vsock client on %s: %w", l.Addr(), err)
		}
		if !d.open.addBelow(d.Limits.MaxConnections) {
			d.Stats.Refused.Add(1)
			replyError(sock, fmt.Errorf("%d connections are open, which is the limit", d.Limits.MaxConnections))
			sock.Close()
			continue
		}
		go d.serve(sock, d.register(sock))
	}
}

// register makes CloseAll know a client. It returns the channel that CloseAll closes.
func (d *Device) register(sock *net.UnixConn) (abort chan struct{}) {
	sock.SetReadDeadline(time.Now().Add(d.Limits.ConnectTimeout))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handshakes[sock] = struct{}{}
	return d.abort
}

// serve is the life of one client.
func (d *Device) serve(sock *net.UnixConn, abort chan struct{}) {
	defer sock.Close()
	c, err := d.connect(sock, abort)
	if err != nil {
		d.Stats.Refused.Add(1)
		replyError(sock, err)
		return
	}
	c.pump()
}

func replyError(sock *net.UnixConn, err error) {
	sock.SetWriteDeadline(time.Now().Add(time.Second))
	// Nobody is left to tell if this fails.
	_, _ = fmt.Fprintf(sock, "ERR %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
}

// connect does the handshake with the client and the guest. If it fails, the connection is no longer counted.
func (d *Device) connect(sock *net.UnixConn, abort chan struct{}) (*conn, error) {
	timer := time.NewTimer(d.Limits.ConnectTimeout)
	defer timer.Stop()
	port, early, err := d.handshake(sock)
	if err == nil {
		err = d.lockActive(timer.C, abort)
	}
	if err != nil {
		d.open.add(-1)
		return nil, err
	}
	c, err := d.request(sock, port, early)
	lock := d.backend.Lock
	lock.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-c.settled:
	case <-timer.C:
	}
	lock.Lock()
	defer lock.Unlock()
	defer d.flush()
	if c.state == connecting {
		d.resetConn(c, fmt.Sprintf("the guest did not answer within %v", d.Limits.ConnectTimeout))
	}
	if c.state == closed && !c.opened {
		c.sock = nil
		return nil, fmt.Errorf("connect to guest port %d: %s", port, c.reason)
	}
	return c, nil
}

// handshake reads "CONNECT port\n" and what came with it.
func (d *Device) handshake(sock *net.UnixConn) (port uint32, early []byte, err error) {
	port, early, err = readConnect(sock)
	d.mu.Lock()
	delete(d.handshakes, sock)
	d.mu.Unlock()
	sock.SetReadDeadline(time.Time{})
	return port, early, err
}

func readConnect(sock *net.UnixConn) (uint32, []byte, error) {
	buf := make([]byte, earlyBytes)
	n := 0
	for {
		m, err := sock.Read(buf[n:])
		n += m
		line, rest, found := bytes.Cut(buf[:n], []byte("\n"))
		if found && len(line) < maxLine {
			port, err := parseConnect(string(line))
			return port, rest, err
		}
		if n >= maxLine {
			return 0, nil, errors.New(`the first line is too long: expected "CONNECT port"`)
		}
		if err != nil {
			return 0, nil, fmt.Errorf(`read "CONNECT port": %w`, err)
		}
	}
}

func parseConnect(line string) (uint32, error) {
	text, ok := strings.CutPrefix(line, "CONNECT ")
	port, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil {
		return 0, fmt.Errorf(`%q is not "CONNECT port"`, line)
	}
	return uint32(port), nil
}

// lockActive takes the transport's lock once the device is active.
func (d *Device) lockActive(timeout <-chan time.Time, abort chan struct{}) error {
	for {
		d.mu.Lock()
		ready := d.ready
		d.mu.Unlock()
		select {
		case <-ready:
		case <-abort:
			return errAborted
		case <-timeout:
			return fmt.Errorf("the guest's vsock driver is not up after %v", d.Limits.ConnectTimeout)
		}
		lock := d.locker()
		lock.Lock()
		select {
		case <-abort:
			lock.Unlock()
			return errAborted
		default:
		}
		if d.active {
			return nil
		}
		lock.Unlock()
	}
}

// locker is the transport's lock, or nil if the device was never active.
func (d *Device) locker() sync.Locker {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock
}

// request opens a connection to the guest. The caller holds the lock.
func (d *Device) request(sock *net.UnixConn, port uint32, early []byte) (*conn, error) {
	c := d.newConn(key{d.allocatePort(port), port}, connecting)
	if err := c.attach(sock); err != nil {
		d.finish(c, "")
		return nil, fmt.Errorf("take the client's socket: %w", err)
	}
	c.early = early
	c.send(wantRequest)
	d.flush()
	return c, nil
}

// acceptGuest answers a guest's REQUEST to the host.
func (d *Device) acceptGuest(h header) {
	if d.accept == nil || !d.open.addBelow(d.Limits.MaxConnections) {
		d.Stats.Refused.Add(1)
		d.refuse(h)
		return
	}
	c := d.newConn(key{host: h.dstPort, guest: h.srcPort}, accepting)
	c.peerBufAlloc, c.peerFwdCnt = h.bufAlloc, h.fwdCnt
	go d.serveGuest(c)
}

// serveGuest is the life of a connection that the guest opened.
func (d *Device) serveGuest(c *conn) {
	sock, err := d.accept(c.key.host)
	if err == nil {
		defer sock.Close()
	}
	if d.answer(c, sock, err) {
		c.pump()
	}
}

// answer tells the guest whether its connection is open, and reports it.
func (d *Device) answer(c *conn, sock *net.UnixConn, err error) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	defer d.flush()
	if c.state != accepting {
		return false
	}
	if err == nil {
		err = c.attach(sock)
	}
	if err != nil {
		d.Stats.Refused.Add(1)
		d.resetConn(c, err.Error())
		return false
	}
	d.Stats.Opened.Add(1)
	c.settle(established)
	c.send(wantResponse)
	return true
}
