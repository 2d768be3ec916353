package netvs

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// FuzzFromGuest throws frames at the program and holds it to what matters: whatever leaves has the sandbox's
// address, a destination that the policy allows, the same length, and checksums as right as they were.
func FuzzFromGuest(f *testing.F) {
	b := newBench(f)
	b.attach(f, &Policy{Internet: true, Deny: rules(f, "198.51.100.0/24")})
	f.Add(probe(world, TCP, 443))
	f.Add(probe(world2, UDP, 53))
	f.Add(probe(gateway, ICMP, 0))
	f.Add(frame(broadcast, GuestMAC, etherARP, arp(1, GuestMAC, guest, make([]byte, 6), gateway)))
	f.Add(fromGuest(ip4(header{src: guest, dst: world, protocol: ICMP}, icmp(3, 3, 0, ip4(header{src: world, dst: guest, protocol: UDP}, udp(world, guest, 1, 2, nil))))))
	f.Add(fromGuest(ip4(header{src: guest, dst: world, protocol: UDP, frag: 0x2000}, udp(guest, world, 1, 2, make([]byte, 32)))))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) < 34 || len(packet) > 1514 {
			return // shorter and longer ones never come to the program by a test run
		}
		verdict, out := b.run(t, b.FromGuest, 0, packet)
		switch verdict {
		case drop, redirect:
		case next:
			checkLeaving(t, packet, out)
		default:
			t.Fatalf("verdict %d", int32(verdict))
		}
	})
}

func checkLeaving(t *testing.T, in, out []byte) {
	t.Helper()
	if len(in) != len(out) || binary.BigEndian.Uint16(out[12:]) != etherIPv4 || out[14] != 0x45 {
		t.Fatalf("left as %x", out)
	}
	src, dst := netip.AddrFrom4([4]byte(out[26:30])), netip.AddrFrom4([4]byte(out[30:34]))
	if src.String() != hostSide || netip.AddrFrom4([4]byte(in[26:30])).String() != guest {
		t.Fatalf("left from %v", src)
	}
	if dst.String() != resolver {
		for _, p := range append(neverReached, netip.MustParsePrefix("198.51.100.0/24")) {
			if p.Contains(dst) {
				t.Fatalf("left to %v", dst)
			}
		}
	} else if netip.AddrFrom4([4]byte(in[30:34])).String() != gateway || binary.BigEndian.Uint16(out[36:]) != 53 {
		t.Fatalf("reached the resolver's host: %x", out)
	}
	if sound := checksum(in[14:34]) == 0; sound != (checksum(out[14:34]) == 0) {
		t.Fatalf("the header's checksum was right: %v, and now is not the same: %x", sound, out)
	}
	if !bytes.Equal(in[14:24], out[14:24]) || !bytes.Equal(in[:14], out[:14]) {
		t.Fatalf("changed more than addresses and checksums: %x", out)
	}
}
