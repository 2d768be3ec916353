package vmm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/kvm"
)

// vcpu is one virtual CPU with its thread. The thread exists from New on: KVM_RUN from another thread than
// the last one would cost an RCU grace period.
type vcpu struct {
	id    int
	kvm   *kvm.VCPU
	m     *Machine
	cpuid []kvm.CPUIDEntry
	// wake is an eventfd in whose read the parked thread sleeps. The thread is locked to its goroutine, which
	// a channel would wake only by way of another thread.
	wake   *kvm.FD
	ending atomic.Bool // wake ends the thread instead of entering the guest
	joined chan struct{}
	tid    int
	// stopping has the thread park at the next opportunity. Set by stop from any goroutine.
	stopping atomic.Bool
	// tellPaused: the guest was stopped, and its watchdogs must hear of it before it runs. Set while parked.
	tellPaused bool
}

// firstRunRetries bounds how often a spurious ENOMEM of the first KVM_RUN is taken.
const firstRunRetries = 100

// startThread starts the vCPU's thread and has it call KVM_RUN once without entering the guest. The kernel
// does on a first KVM_RUN what it has put off until then (it may start the VM's worker thread, and reports
// a bogus ENOMEM when a signal arrives meanwhile); here this is off the path to the first instruction.
func (c *vcpu) startThread() error {
	raw, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	c.wake = kvm.NewFD(raw)
	ready := make(chan error)
	c.joined = make(chan struct{})
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		defer close(c.joined)
		c.tid = unix.Gettid()
		ready <- c.firstRun()
		for c.park() {
			c.loop()
			c.m.parked()
		}
	}()
	return <-ready
}

// park sleeps until start or endThread; false means that the thread shall end.
func (c *vcpu) park() bool {
	var count [8]byte
	for {
		_, err := unix.Read(c.wake.Int(), count[:])
		switch {
		case err == nil:
			return !c.ending.Load()
		case err != unix.EINTR:
			panic(fmt.Sprintf("vmm: read of our own eventfd: %v", err))
		}
	}
}

func (c *vcpu) unpark() {
	one := [8]byte{1}
	if _, err := unix.Write(c.wake.Int(), one[:]); err != nil {
		panic(fmt.Sprintf("vmm: write of our own eventfd: %v", err))
	}
}

func (c *vcpu) firstRun() error {
	c.kvm.SetImmediateExit(true)
	for range firstRunRetries {
		err := c.kvm.Run()
		switch {
		case errors.Is(err, unix.EINTR):
			return nil
		case errors.Is(err, unix.ENOMEM):
		case err != nil:
			return err
		}
	}
	return fmt.Errorf("KVM_RUN: %w, %d times", unix.ENOMEM, firstRunRetries)
}

// start has the parked thread enter the guest. The caller has counted it as running.
func (c *vcpu) start() {
	c.stopping.Store(false)
	c.kvm.SetImmediateExit(false)
	c.unpark()
}

// stop has the thread leave the guest and park. It does not wait.
func (c *vcpu) stop() {
	c.stopping.Store(true)
	// immediate_exit catches a thread on its way into KVM_RUN, the signal one that is in the guest. Go's
	// runtime takes SIGURG for its own preemption and ignores strays.
	c.kvm.SetImmediateExit(true)
	_ = unix.Tgkill(os.Getpid(), c.tid, unix.SIGURG)
}

// endThread ends a parked thread.
func (c *vcpu) endThread() error {
	if c.joined == nil {
		return nil
	}
	c.ending.Store(true)
	c.unpark()
	<-c.joined
	return c.wake.Close()
}

// loop runs the guest until stop. It leaves only after a KVM_RUN that returned EINTR, which has completed
// the port or memory access that was pending: the registers are those between two instructions.
func (c *vcpu) loop() {
	if c.tellPaused {
		c.tellPaused = false
		if err := c.kvm.MarkPaused(); err != nil {
			c.crash(err.Error())
			return
		}
	}
	for {
		err := c.kvm.Run()
		switch {
		case err == nil:
			if !c.handle() {
				return
			}
		case err == unix.EINTR:
			if c.stopping.Load() {
				return
			}
		default:
			c.crash(err.Error())
			return
		}
	}
}

// handle acts on an exit to user space; false means that the guest has stopped for good.
func (c *vcpu) handle() bool {
	switch r := c.kvm.Reason(); r {
	case kvm.ExitIO:
		return c.port(c.kvm.IO())
	case kvm.ExitMMIO:
		return c.mmio(c.kvm.MMIO())
	case kvm.ExitIRQWindowOpen, kvm.ExitIntr, kvm.ExitIOAPICEOI:
		return true
	case kvm.ExitShutdown:
		c.crash("triple fault")
	case kvm.ExitFailEntry:
		c.crash(fmt.Sprintf("the CPU refused to enter the guest, hardware reason %#x", c.kvm.FailEntry()))
	case kvm.ExitInternalError:
		c.internalError()
	case kvm.ExitSystemEvent:
		c.crash(fmt.Sprintf("system event %d", c.kvm.SystemEvent()))
	default:
		c.crash(fmt.Sprintf("KVM exit %d, which this VMM does not know", r))
	}
	return false
}

func (c *vcpu) crash(detail string) {
	c.m.finish(Exit{Reason: Crash, Detail: fmt.Sprintf("vCPU %d: %s%s", c.id, detail, c.where())})
}

func (c *vcpu) internalError() {
	sub, data := c.kvm.InternalError()
	detail := fmt.Sprintf("vCPU %d: KVM internal error %d, data %#x%s", c.id, sub, data, c.where())
	c.m.finish(Exit{Reason: Crash, Detail: detail, Emulation: sub == kvm.InternalErrorEmulation})
}

// where says what the vCPU was doing, as far as that can be found out.
func (c *vcpu) where() string {
	r, err := c.kvm.Regs()
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", rip %#x", r.RIP)
}
