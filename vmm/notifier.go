package vmm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/kvm"
)

// notifier is the one thread that takes the guest's queue notifications: KVM signals an eventfd for each,
// and an edge-triggered epoll wakes the thread, which never has to read them.
type notifier struct {
	epoll *kvm.FD
	// control wakes the thread for what commands holds.
	control  *kvm.FD
	commands chan func() (more bool)
	ended    chan struct{}
	handlers []func() // by epoll data; set before the thread runs
}

// controlEvent is the epoll data of control.
const controlEvent = -1

// newNotifier makes the notifier, parked.
func newNotifier() (*notifier, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	n := &notifier{epoll: kvm.NewFD(ep), commands: make(chan func() bool), ended: make(chan struct{})}
	if n.control, err = n.watch(controlEvent); err != nil {
		return nil, errors.Join(err, n.epoll.Close())
	}
	go n.loop()
	return n, nil
}

// add makes an eventfd whose signals call handler on the notifier's thread. The notifier is parked.
func (n *notifier) add(handler func()) (*kvm.FD, error) {
	n.handlers = append(n.handlers, handler)
	return n.watch(int32(len(n.handlers) - 1))
}

func (n *notifier) watch(data int32) (*kvm.FD, error) {
	raw, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	fd := kvm.NewFD(raw)
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&0xffffffff, Fd: data}
	if err := unix.EpollCtl(n.epoll.Int(), unix.EPOLL_CTL_ADD, raw, &ev); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), fd.Close())
	}
	return fd, nil
}

// loop parks until resume or close, then serves events until pause or close.
func (n *notifier) loop() {
	defer close(n.ended)
	for cmd := range n.commands {
		if cmd() {
			n.serve()
		}
	}
}

// serve handles events until control is signalled and nothing else is left: what was signalled before
// control is done when it returns.
func (n *notifier) serve() {
	var events [16]unix.EpollEvent
	stopping := false
	for {
		timeout := -1
		if stopping {
			timeout = 0
		}
		got, err := unix.EpollWait(n.epoll.Int(), events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("vmm: epoll_wait on our own descriptor: %v", err))
		}
		if stopping && got == 0 && err == nil {
			return
		}
		for _, e := range events[:max(got, 0)] {
			if e.Fd == controlEvent {
				stopping = true
				continue
			}
			n.handlers[e.Fd]()
		}
	}
}

// resume has the parked notifier call first and then serve events.
func (n *notifier) resume(first func()) {
	n.commands <- func() bool { first(); return true }
}

// pause has the notifier finish what is signalled and park; it waits for that.
func (n *notifier) pause() error {
	if err := n.interrupt(); err != nil {
		return err
	}
	n.commands <- func() bool { return false }
	return nil
}

// interrupt has serve return when it has finished what is signalled. On a parked notifier the next serve
// returns at once.
func (n *notifier) interrupt() error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := unix.Write(n.control.Int(), one[:]); err != nil {
		return fmt.Errorf("stop the notifier: %w", err)
	}
	return nil
}

// close ends the thread, parked or not.
func (n *notifier) close() error {
	close(n.commands)
	if err := n.interrupt(); err != nil {
		return err
	}
	<-n.ended
	return errors.Join(n.control.Close(), n.epoll.Close())
}
