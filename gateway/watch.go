package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// hangupWatcher notices clients that go away while nobody reads from them. fasthttp does not: a handler that
// waits for a silent upstream would hold it for ever. One epoll instance watches all connections for their
// peer's FIN or reset, and takes no bytes from them, so it works beside whoever reads.
//
// A client that only half-closes counts as gone, as in other proxies.
type hangupWatcher struct {
	epoll int
	// wake is an eventfd in the set, with id 0.
	wake int

	mu sync.Mutex
	// watched is guarded by mu; its keys travel through the kernel.
	watched map[uint64]*hangup
	last    uint64
	closed  bool
}

// hangup is one watch.
type hangup struct {
	w    *hangupWatcher
	id   uint64
	conn syscall.RawConn
	// gone is called at most once, and never after stop returned.
	gone func()
}

func newHangupWatcher() (*hangupWatcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch connections: epoll_create1: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch connections: eventfd: %w", err)
	}
	w := &hangupWatcher{epoll: fd, wake: wake, watched: map[uint64]*hangup{}}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(fd)
		unix.Close(wake)
		return nil, fmt.Errorf("watch connections: epoll_ctl: %w", err)
	}
	go w.run()
	return w, nil
}

// run delivers events until close.
func (w *hangupWatcher) run() {
	defer func() {
		w.mu.Lock() // not before close has written to wake
		defer w.mu.Unlock()
		unix.Close(w.epoll)
		unix.Close(w.wake)
	}()
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if w.fire(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32) {
				return
			}
		}
	}
}

// fire calls the watch's function under the lock, which is what lets stop promise that it is over. It reports
// whether the event was close's.
func (w *hangupWatcher) fire(id uint64) (closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id == 0 {
		return w.closed
	}
	if h := w.watched[id]; h != nil {
		delete(w.watched, id)
		h.gone()
	}
	return false
}

// watch calls gone, which must be quick, when the peer of c goes away. It returns nil if c can't be watched.
func (w *hangupWatcher) watch(c net.Conn, gone func()) *hangup {
	sc, ok := transportConn(c).(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	h := &hangup{w: w, conn: raw, gone: gone}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.last++
	h.id = w.last
	w.watched[h.id] = h
	w.mu.Unlock()
	// Edge-triggered and once: the event is wanted once, and a hang-up before now counts too.
	event := unix.EpollEvent{
		Events: unix.EPOLLRDHUP | unix.EPOLLET | unix.EPOLLONESHOT,
		Fd:     int32(uint32(h.id)), Pad: int32(uint32(h.id >> 32)),
	}
	err = unix.EBADF
	raw.Control(func(fd uintptr) { err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, int(fd), &event) })
	if err != nil {
		w.forget(h)
		return nil
	}
	return h
}

// stop ends the watch and reports whether the peer was still there. It may be called on nil and twice.
func (h *hangup) stop() bool {
	if h == nil {
		return true
	}
	if !h.w.forget(h) {
		return false
	}
	// Control refuses a closed connection, so this can't hit a descriptor that was given to another since.
	h.conn.Control(func(fd uintptr) { unix.EpollCtl(h.w.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) })
	return true
}

func (w *hangupWatcher) forget(h *hangup) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.watched[h.id]
	delete(w.watched, h.id)
	return ok
}

// close ends the watcher; its watches never fire again.
func (w *hangupWatcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	clear(w.watched)
	unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// transportConn is the connection under TLS, whose descriptor shows a hang-up.
func transportConn(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}
