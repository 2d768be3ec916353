package blk

import (
	"encoding/binary"
	"fmt"
)

// stateVersion is the first byte of a saved disk; capacity in sectors and the read-only flag follow.
const stateVersion = 1

// Save returns what a restored guest relies on. The content of the disk is not part of it.
func (d *Device) Save() ([]byte, error) {
	b := binary.LittleEndian.AppendUint64([]byte{stateVersion}, d.sectors)
	return append(b, boolByte(d.cfg.ReadOnly)), nil
}

// Restore checks that this disk is one the saved guest can go on with: the same capacity and access.
func (d *Device) Restore(state []byte) error {
	if len(state) != 10 || state[0] != stateVersion {
		return fmt.Errorf("disk state of %d bytes is not version %d", len(state), stateVersion)
	}
	if n := binary.LittleEndian.Uint64(state[1:]); n != d.sectors {
		return fmt.Errorf("disk %s has %d sectors, the snapshot's had %d: it is not a clone of the snapshot's disk",
			d.file.Name(), d.sectors, n)
	}
	if state[9] != boolByte(d.cfg.ReadOnly) {
		return fmt.Errorf("disk %s: read-only is %t, in the snapshot it was %t",
			d.file.Name(), d.cfg.ReadOnly, !d.cfg.ReadOnly)
	}
	return nil
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
