package netvs

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Packets are built from scratch, checksums included, so that what a program rewrote can be compared byte by byte
// with the packet that the other side would have sent.

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func frame(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	b := append(append(make([]byte, 0, 14+len(payload)), dst...), src...)
	b = binary.BigEndian.AppendUint16(b, etherType)
	return append(b, payload...)
}

// fromGuest is a frame as an honest guest sends it; toGuest one as the host does.
func fromGuest(ip []byte) []byte { return frame(GatewayMAC, GuestMAC, etherIPv4, ip) }
func toGuest(ip []byte) []byte   { return frame(GuestMAC, GatewayMAC, etherIPv4, ip) }

// header is an IPv4 header; zero fields get what is usual.
type header struct {
	src, dst string
	protocol Protocol
	ttl      uint8
	// frag is the flags and the offset, as on the wire.
	frag    uint16
	options []byte
	// version, words and total override the true values, to lie.
	version, words uint8
	total          int
}

func ip4(h header, payload []byte) []byte {
	size := 20 + len(h.options)
	b := make([]byte, size, size+len(payload))
	version, words, total, ttl := uint8(4), uint8(size/4), size+len(payload), uint8(64)
	if h.version != 0 {
		version = h.version
	}
	if h.words != 0 {
		words = h.words
	}
	if h.total != 0 {
		total = h.total
	}
	if h.ttl != 0 {
		ttl = h.ttl
	}
	b[0] = version<<4 | words
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	binary.BigEndian.PutUint16(b[4:], 0x1234)
	binary.BigEndian.PutUint16(b[6:], h.frag)
	b[8], b[9] = ttl, uint8(h.protocol)
	copy(b[12:], netip.MustParseAddr(h.src).AsSlice())
	copy(b[16:], netip.MustParseAddr(h.dst).AsSlice())
	copy(b[20:], h.options)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// udp is a datagram with its checksum.
func udp(src, dst string, sport, dport uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	sum := checksum(pseudo(src, dst, UDP, len(b)), b)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

// unsummed takes a datagram's checksum away, which IPv4 permits.
func unsummed(b []byte) []byte { b[6], b[7] = 0, 0; return b }

// tcp is a segment with its checksum.
func tcp(src, dst string, sport, dport uint16, flags uint8, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint32(b[4:], 0x01020304)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 64240)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo(src, dst, TCP, len(b)), b))
	return b
}

// icmp is a message with its checksum; rest are the four bytes after it.
func icmp(kind, code uint8, rest uint32, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0], b[1] = kind, code
	binary.BigEndian.PutUint32(b[4:], rest)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// arp is an Ethernet ARP message.
func arp(op uint16, senderMAC net.HardwareAddr, sender string, targetMAC net.HardwareAddr, target string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, senderMAC...), netip.MustParseAddr(sender).AsSlice()...)
	return append(append(b, targetMAC...), netip.MustParseAddr(target).AsSlice()...)
}

func pseudo(src, dst string, p Protocol, length int) []byte {
	b := append(netip.MustParseAddr(src).AsSlice(), netip.MustParseAddr(dst).AsSlice()...)
	b = append(b, 0, uint8(p))
	return binary.BigEndian.AppendUint16(b, uint16(length))
}

// checksum is the Internet checksum (RFC 1071) of parts, each but the last of even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		}
		if len(b)%2 == 1 {
			sum += uint32(b[len(b)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
