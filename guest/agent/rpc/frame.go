package rpc

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Bits of a frame's first byte.
const (
	flagCompressed = 0x01
	flagEnd        = 0x02
)

// MaxMessageBytes bounds one incoming message: a client must not be able to fill the guest's memory.
const MaxMessageBytes = 16 << 20

// readFrame reads one enveloped message: a flags byte, a big-endian length, the payload. io.EOF means
// that the stream ended between two frames.
func readFrame(r io.Reader) (flags byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			return 0, nil, Errorf(InvalidArgument, "stream ends in the middle of a frame's header")
		}
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > MaxMessageBytes {
		return 0, nil, Errorf(ResourceExhausted, "message of %d bytes; the limit is %d", size, MaxMessageBytes)
	}
	if head[0]&flagCompressed != 0 {
		return 0, nil, Errorf(Unimplemented, "compressed messages are not supported; send them as they are")
	}
	// Grow with what arrives, not with what the header claims.
	payload, err = io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return 0, nil, fmt.Errorf("read message: %w", err)
	}
	if len(payload) < int(size) {
		return 0, nil, Errorf(InvalidArgument, "message ends after %d of %d bytes", len(payload), size)
	}
	return head[0], payload, nil
}

// appendFrame wraps payload in an envelope.
func appendFrame(b []byte, flags byte, payload []byte) []byte {
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}
