// Command cella-agent runs inside every sandbox. As PID 1 it boots the guest from its initramfs; with
// --debug it serves the agent protocol on a host, for tests.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent"
	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/reap"
	"cella.dev/cella/guest/wire"
)

func main() {
	if os.Getpid() == 1 {
		runGuest()
		return
	}
	debug := flag.Bool("debug", false, "serve on this host instead of booting a guest")
	listen := flag.String("listen", "127.0.0.1:49983", "address to serve on, with --debug")
	version := flag.Bool("version", false, "print the version of the agent protocol and exit")
	flag.Parse()
	err := fmt.Errorf("not PID 1: run it as a guest's init, or with --debug")
	switch {
	case *version:
		fmt.Println(wire.AgentVersion)
		return
	case *debug:
		err = serveDebug(*listen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cella-agent: "+err.Error())
		os.Exit(1)
	}
}

// serveDebug runs an agent that is open from the start and leaves the host's clock and disks alone. A
// signal ends it, and with it all processes that were started through it.
func serveDebug(addr string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// What the agent was started with is not for the processes that it starts.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep inherited files private: %w", err)
	}
	reaper, groups := reap.New(), debugGroups(log)
	a := agent.New(agent.Config{Reaper: reaper, Groups: groups, Users: accounts.Open("/etc"), Log: log})
	if err := a.Control(&wire.ControlRequest{Op: wire.OpInit, Init: &wire.Init{SandboxID: "debug_sandbox_id"}}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; is another agent running?", addr, err)
	}
	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(stopped, func() { l.Close() })
	log.Info("serving", "addr", l.Addr().String())
	err = a.Serve(l)
	if groups != nil {
		closed := groups.Close(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			reaper.WaitAll(ctx) // what is left makes Close fail and say so
		})
		if closed != nil {
			return closed
		}
	}
	if stopped.Err() != nil {
		return nil
	}
	return err
}

// debugGroups uses cgroups where they are writable; process trees are found without them otherwise.
func debugGroups(log *slog.Logger) *cgroup.Parent {
	mount, err := cgroup.Mounted()
	if err == nil {
		var groups *cgroup.Parent
		if groups, err = cgroup.Open(mount, fmt.Sprintf("cella-agent-%d", os.Getpid())); err == nil {
			return groups
		}
	}
	log.Warn("no cgroups; process trees are killed by searching /proc", "err", err)
	return nil
}
