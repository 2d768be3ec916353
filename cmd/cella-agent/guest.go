package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent"
	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/boot"
	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/reap"
	"cella.dev/cella/guest/wire"
)

// runGuest is PID 1: it boots the guest and serves until the machine is switched off.
func runGuest() {
	// A heap of 1 to 2 MiB is enough, and each dirty page is one that every sandbox has a copy of.
	debug.SetGCPercent(25)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := serveGuest(log); err != nil {
		log.Error("guest can't go on", "err", err)
		boot.Halt(log)
	}
}

func serveGuest(log *slog.Logger) error {
	if err := boot.Run(log); err != nil {
		return err
	}
	reaper := reap.New()
	groups, err := cgroup.Open("/sys/fs/cgroup", "user")
	if err != nil {
		return err
	}
	powerOff := func() { boot.PowerOff(log, reaper, groups) }
	machine, err := agent.OpenMachine(powerOff)
	if err != nil {
		return err
	}
	a := agent.New(agent.Config{
		Reaper: reaper, Groups: groups, Users: accounts.Open("/etc"), Machine: machine, Log: log,
	})
	failed := make(chan error)
	if err := listenAll(a, failed); err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPWR)
	select {
	case err := <-failed:
		return err
	case <-asked:
		powerOff()
	}
	return nil
}

// listenAll opens every port before it serves any: a host that reaches one can count on all.
func listenAll(a *agent.Agent, failed chan<- error) error {
	ports := []struct {
		number   uint32
		hostOnly bool
		serve    func(net.Listener) error
	}{
		{wire.PortAgent, false, a.Serve},
		{wire.PortForward, true, a.ServeForward},
		{wire.PortControl, true, a.ServeControl},
	}
	var start []func() error
	for _, p := range ports {
		var l net.Listener
		l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, p.number, nil)
		if err != nil {
			return fmt.Errorf("listen on vsock port %d: %w; are the vsock modules loaded?", p.number, err)
		}
		if p.hostOnly {
			l = hostListener{l}
		}
		start = append(start, func() error { return p.serve(l) })
	}
	// Programs in the sandbox know the agent by its TCP address, as in E2B.
	local, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", wire.PortAgent))
	if err != nil {
		return err
	}
	start = append(start, func() error { return a.Serve(local) })
	for _, serve := range start {
		go func() { failed <- serve() }()
	}
	return nil
}

// hostListener hangs up on everyone but the host: a program in the guest may try vsock's loopback.
type hostListener struct{ net.Listener }

func (l hostListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if addr, ok := conn.RemoteAddr().(*vsock.Addr); ok && addr.ContextID == vsock.Host {
			return conn, nil
		}
		conn.Close()
	}
}
