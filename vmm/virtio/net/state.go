package net

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
)

// stateVersion is the first byte of a saved network card; MAC and MTU follow.
const stateVersion = 1

// Save returns what a restored guest relies on. Frames in the TAP are not part of it.
func (d *Device) Save() ([]byte, error) {
	b := append([]byte{stateVersion}, d.cfg.MAC...)
	return binary.LittleEndian.AppendUint16(b, d.cfg.MTU), nil
}

// Restore checks that this card is the one the saved guest knows: its driver reads neither MAC nor MTU again.
func (d *Device) Restore(state []byte) error {
	if len(state) != 9 || state[0] != stateVersion {
		return fmt.Errorf("network card state of %d bytes is not version %d", len(state), stateVersion)
	}
	if mac := net.HardwareAddr(state[1:7]); !bytes.Equal(mac, d.cfg.MAC) {
		return fmt.Errorf("network card has MAC %v, the snapshot's had %v", d.cfg.MAC, mac)
	}
	if mtu := binary.LittleEndian.Uint16(state[7:]); mtu != d.cfg.MTU {
		return fmt.Errorf("network card has MTU %d, the snapshot's had %d", d.cfg.MTU, mtu)
	}
	return nil
}
