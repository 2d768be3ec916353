package vmm

import (
	"errors"
	"fmt"

	"cella.dev/cella/vmm/chipset"
	"cella.dev/cella/vmm/kvm"
	"cella.dev/cella/vmm/virtio"
	"cella.dev/cella/vmm/virtio/mmio"
)

const (
	// firstDeviceGSI is the first interrupt line after those that PCs give to other things.
	firstDeviceGSI = chipset.SerialGSI + 1
	maxDevices     = chipset.IOAPICPins - firstDeviceGSI
	// queueNotify is the register that the guest writes a queue's number to (virtio 1.2 §4.2.2).
	queueNotify = 0x50
)

// attached is a virtio device on the machine's bus.
type attached struct {
	transport *mmio.Transport
	kicks     []*kvm.FD // eventfds, by queue
}

func windowBase(i int) uint32 { return virtioBase + uint32(i)*virtioSize }
func windowGSI(i int) uint32  { return firstDeviceGSI + uint32(i) }

// line is a device's interrupt line.
type line struct {
	ioapic *chipset.IOAPIC
	pin    int
}

// Signal raises an edge.
func (l line) Signal() error { return l.ioapic.Assert(l.pin) }

// AddDevice puts a virtio device into the next window of the bus. It must be called before Load or Restore,
// and in the same order for a machine and for its restored copies.
func (m *Machine) AddDevice(dev virtio.Device) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect("add device", phaseNew); err != nil {
		return err
	}
	i := len(m.devices)
	if i == maxDevices {
		return fmt.Errorf("add device: the machine has %d already", i)
	}
	d := &attached{transport: mmio.New(m.mem, dev, line{m.ioapic, int(windowGSI(i))})}
	for q := range d.transport.QueueCount() {
		if err := m.addKick(d, q, uint64(windowBase(i))+queueNotify); err != nil {
			return errors.Join(fmt.Errorf("add device %d, queue %d: %w", i, q, err), d.close())
		}
	}
	m.devices = append(m.devices, d)
	return nil
}

// addKick has a guest's write of queue's number to addr wake the notifier instead of leaving KVM_RUN.
func (m *Machine) addKick(d *attached, queue int, addr uint64) error {
	fd, err := m.kicks.add(func() { d.transport.Notify(queue) })
	if err != nil {
		return err
	}
	d.kicks = append(d.kicks, fd)
	return m.vm.SetIOEventFD(kvm.IOEventFD{
		Addr: addr, Len: 4, DataMatch: uint64(queue), Flags: kvm.IOEventFDDataMatch, FD: int32(fd.Int()),
	})
}

func (d *attached) close() error {
	d.transport.Close() // a device works from goroutines of its own; the memory goes next
	var errs []error
	for _, fd := range d.kicks {
		errs = append(errs, fd.Close())
	}
	return errors.Join(errs...)
}

// quiesceDevices keeps devices that work from goroutines of their own off the guest's memory.
func (m *Machine) quiesceDevices() {
	for _, d := range m.devices {
		d.transport.Pause()
	}
}

// kickDevices lets devices work again, on the notifier's thread.
func (m *Machine) kickDevices() {
	for _, d := range m.devices {
		d.transport.Resume()
		d.transport.Kick()
	}
}
