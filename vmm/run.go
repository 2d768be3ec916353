package vmm

import (
	"errors"
	"fmt"
)

// ErrStopped is wrapped by the errors of a machine that has stopped for good.
var ErrStopped = errors.New("the machine has stopped")

// Start lets the guest run for the first time, after Load or Restore.
func (m *Machine) Start() error { return m.run("start", phaseLoaded) }

// Resume lets a paused guest go on.
func (m *Machine) Resume() error { return m.run("resume", phasePaused) }

func (m *Machine) run(what string, want phase) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect(what, want); err != nil {
		return err
	}
	m.phase = phaseRunning
	m.running = len(m.vcpus)
	// vCPUs first: what the devices missed while the machine stood still can be made up beside them.
	for _, c := range m.vcpus {
		c.tellPaused = m.restored || want == phasePaused
		c.start()
	}
	m.kicks.resume(m.kickDevices)
	return nil
}

// expect checks the phase. m.mu is held.
func (m *Machine) expect(what string, want phase) error {
	if m.exit != nil {
		return fmt.Errorf("%s: %w: %s", what, ErrStopped, *m.exit)
	}
	if m.phase != want {
		return fmt.Errorf("%s: the machine is in phase %d, want %d", what, m.phase, want)
	}
	return nil
}

// Pause stops vCPUs and devices. When it returns, nothing writes to guest memory until Resume, and no
// notification of the guest's is left unhandled.
func (m *Machine) Pause() error {
	m.mu.Lock()
	if err := m.expect("pause", phaseRunning); err != nil {
		m.mu.Unlock()
		return err
	}
	m.mu.Unlock()
	for _, c := range m.vcpus {
		c.stop()
	}
	m.awaitParked()
	// The notifier goes second, so that it sees what the vCPUs signalled last.
	if err := m.kicks.pause(); err != nil {
		return err
	}
	m.quiesceDevices()
	m.bus.flush()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = phasePaused
	if m.exit != nil {
		return fmt.Errorf("pause: %w: %s", ErrStopped, *m.exit)
	}
	return nil
}

// parked is called by a vCPU's thread when it has left the guest.
func (m *Machine) parked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if m.running == 0 {
		m.idle.Broadcast()
	}
}

func (m *Machine) awaitParked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.running > 0 {
		m.idle.Wait()
	}
}
