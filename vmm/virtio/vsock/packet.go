package vsock

import (
	"encoding/binary"
)

// hostCID is the address of the host on every machine (virtio 1.2 §5.10.4).
const hostCID = 2

// headerSize is the length of a packet's header; the payload follows (§5.10.6).
const headerSize = 44

// maxPayload bounds the payload of one packet, as Linux does.
const maxPayload = 64 << 10

const typeStream = 1

// Packet operations (§5.10.6).
const (
	opRequest       = 1
	opResponse      = 2
	opRST           = 3
	opShutdown      = 4
	opRW            = 5
	opCreditUpdate  = 6
	opCreditRequest = 7
)

// Flags of opShutdown: the sender will not receive, or not send, any more.
const (
	shutdownReceive = 1
	shutdownSend    = 2
	shutdownBoth    = shutdownReceive | shutdownSend
)

type header struct {
	srcCID, dstCID   uint64
	srcPort, dstPort uint32
	len              uint32
	typ, op          uint16
	flags            uint32
	bufAlloc, fwdCnt uint32
}

func (h *header) encode(b *[headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.srcCID)
	le.PutUint64(b[8:], h.dstCID)
	le.PutUint32(b[16:], h.srcPort)
	le.PutUint32(b[20:], h.dstPort)
	le.PutUint32(b[24:], h.len)
	le.PutUint16(b[28:], h.typ)
	le.PutUint16(b[30:], h.op)
	le.PutUint32(b[32:], h.flags)
	le.PutUint32(b[36:], h.bufAlloc)
	le.PutUint32(b[40:], h.fwdCnt)
}

func (h *header) decode(b *[headerSize]byte) {
	le := binary.LittleEndian
	*h = header{
		srcCID: le.Uint64(b[0:]), dstCID: le.Uint64(b[8:]),
		srcPort: le.Uint32(b[16:]), dstPort: le.Uint32(b[20:]),
		len: le.Uint32(b[24:]), typ: le.Uint16(b[28:]), op: le.Uint16(b[30:]), flags: le.Uint32(b[32:]),
		bufAlloc: le.Uint32(b[36:]), fwdCnt: le.Uint32(b[40:]),
	}
}
