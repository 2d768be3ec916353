package net

import "encoding/binary"

// headerSize is the virtio-net header before each frame, with num_buffers (§5.1.6, VERSION_1).
const headerSize = 12

// Header fields: flags (1 byte), gso_type (1), hdr_len, gso_size, csum_start, csum_offset, num_buffers (2 each).
const (
	numBuffersOffset = 10

	flagNeedsCSum = 1

	gsoNone  = 0
	gsoTCPv4 = 1
	gsoTCPv6 = 4
)

// ethernetSize is the least that a frame has: two addresses and a type.
const ethernetSize = 14

// maxFrame is the longest frame with its header: one that carries a whole IP packet for the other side to segment
// (§5.1.6.3.1 has the same number).
const maxFrame = headerSize + ethernetSize + 65536

// frameSize is the longest frame, with its header, that reaches the guest with what it negotiated.
func (d *Device) frameSize() uint64 {
	if d.backend.Features&(featureGuestTSO4|featureGuestTSO6) != 0 {
		return maxFrame
	}
	return headerSize + ethernetSize + uint64(d.cfg.MTU)
}

// offloadsNegotiated reports whether the driver may ask for what a frame's header asks: a checksum and segmentation
// that it negotiated. Offsets and sizes are the TAP's to check against the frame, which it does.
func offloadsNegotiated(header []byte, negotiated uint64) bool {
	if header[0]&^flagNeedsCSum != 0 || header[0] != 0 && negotiated&featureCSum == 0 {
		return false
	}
	switch header[1] {
	case gsoNone:
		return true
	case gsoTCPv4:
		return negotiated&featureHostTSO4 != 0 && header[0] != 0
	case gsoTCPv6:
		return negotiated&featureHostTSO6 != 0 && header[0] != 0
	}
	return false
}

// headerTail is the end of the header of a frame that lies in n buffers. The TAP leaves these two bytes as they were.
func headerTail(n int) []byte { return binary.LittleEndian.AppendUint16(nil, uint16(n)) }
