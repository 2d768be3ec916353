package vmm

import "fmt"

// Reason is why a machine stopped.
type Reason int

// The reasons.
const (
	// Stopped: the host closed the machine.
	Stopped Reason = iota
	// PowerOff: the guest switched itself off.
	PowerOff
	// Reset: the guest asked for a reboot. The machine does not start again by itself.
	Reset
	// Crash: a triple fault, or an error of KVM.
	Crash
)

func (r Reason) String() string {
	switch r {
	case Stopped:
		return "stopped"
	case PowerOff:
		return "power off"
	case Reset:
		return "reset"
	case Crash:
		return "crash"
	}
	return fmt.Sprintf("reason %d", int(r))
}

// Exit says why a machine stopped.
type Exit struct {
	Reason Reason
	// Detail is for people: what exactly happened.
	Detail string
	// Emulation is set with Crash if KVM met an instruction that it had to emulate and cannot.
	Emulation bool
}

func (e Exit) String() string { return e.Reason.String() + ": " + e.Detail }

// Done is closed when the machine has stopped by itself or was closed.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Exit says why the machine stopped; it is the zero Exit before Done.
func (m *Machine) Exit() Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.exit == nil {
		return Exit{}
	}
	return *m.exit
}

// finish records the first reason to stop and has all vCPUs leave the guest.
func (m *Machine) finish(e Exit) {
	m.mu.Lock()
	first := m.exit == nil
	if first {
		m.exit = &e
	}
	m.mu.Unlock()
	if !first {
		return
	}
	for _, c := range m.vcpus {
		c.stop()
	}
	m.bus.flush()
	close(m.done)
}
