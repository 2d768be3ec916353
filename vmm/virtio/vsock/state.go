package vsock

import (
	"encoding/binary"
	"fmt"

	"cella.dev/cella/vmm/virtio"
)

// stateVersion is the first byte of a saved device. The CID (8 bytes), the next host port (4), whether the guest
// has connections (1) and whether taken packets are held (1) follow.
const stateVersion = 1

const stateSize = 1 + 8 + 4 + 1 + 1

// eventTransportReset tells the driver that all connections are gone and that it must read its CID again.
const eventTransportReset = 0

// resetEvent follows a TRANSPORT_RESET event. Until the driver has taken it, nothing may be sent to the guest: the
// driver would kill a connection that was opened before (§5.10.6.7).
type resetEvent struct {
	wanted bool // it is not yet known that the driver has taken the event
	sent   bool
	// index is the driver's available index when the event was sent. The driver gives the buffer back after it
	// has acted on the event.
	index uint16
}

func (r *resetEvent) gates() bool { return r.wanted }

// stepReset sends the event, or sees that it was taken, and reports whether the way to the guest just opened.
func (d *Device) stepReset() bool {
	r := &d.reset
	if !r.wanted {
		return false
	}
	q := d.backend.Queues[queueEvent]
	if !q.State().Ready {
		r.wanted = false // a driver without an event queue can't be told
		return true
	}
	if !r.sent && !d.sendReset(q) {
		return false
	}
	if q.AvailIndex() == r.index && !q.RearmAfter(r.index) {
		return false
	}
	r.wanted = false
	return true
}

func (d *Device) sendReset(q *virtio.Queue) bool {
	for !q.Pop(&d.chain) {
		if !q.Rearm() {
			return false
		}
	}
	if err := d.chain.WriteAt(binary.LittleEndian.AppendUint32(nil, eventTransportReset), 0); err != nil {
		q.Fail(err)
		return false
	}
	d.reset.sent, d.reset.index = true, q.AvailIndex()
	q.Push(&d.chain, 4)
	d.touched = true
	d.Stats.TransportResets.Add(1)
	return true
}

// Save returns what a restored guest relies on. Connections end with the machine that is saved; the guest is
// told after the restore if it has any.
func (d *Device) Save() ([]byte, error) {
	b := binary.LittleEndian.AppendUint64([]byte{stateVersion}, d.cid)
	b = binary.LittleEndian.AppendUint32(b, d.nextPort)
	connected := len(d.conns) > 0 || len(d.resets) > 0 || d.reset.wanted
	return append(b, boolByte(connected), boolByte(d.held > 0)), nil
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Restore takes back what Save returned, before Activate.
func (d *Device) Restore(state []byte) error {
	if len(state) != stateSize || state[0] != stateVersion {
		return fmt.Errorf("vsock state of %d bytes is not version %d", len(state), stateVersion)
	}
	if cid := binary.LittleEndian.Uint64(state[1:]); cid != d.cid {
		return fmt.Errorf("the saved guest has CID %d, this device gives it %d: create it with the same", cid, d.cid)
	}
	port := binary.LittleEndian.Uint32(state[9:])
	if port < firstPort || port >= 1<<31 {
		return fmt.Errorf("vsock state has next port %d, which is not in [%d, %d)", port, uint32(firstPort), uint32(1)<<31)
	}
	d.nextPort = port
	d.reset = resetEvent{wanted: state[13] != 0}
	d.held = int(min(state[14], 1))
	return nil
}
