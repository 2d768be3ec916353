package netvs

import (
	"bytes"
	"encoding/binary"
	"errors"
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

// FuzzToGuest does the same with what the world may send: without the mark nothing arrives, and what arrives is for the
// guest.
func FuzzToGuest(f *testing.F) {
	b := newBench(f)
	f.Add(toGuest(ip4(header{src: world, dst: hostSide, protocol: UDP}, udp(world, hostSide, 53, 5000, []byte("answer")))), true)
	f.Add(toGuest(ip4(header{src: world, dst: hostSide, protocol: TCP, options: []byte{1, 1, 1, 0}}, tcp(world, hostSide, 80, 5000, 0x12, nil))), true)
	quote := ip4(header{src: hostSide, dst: world2, protocol: TCP}, tcp(hostSide, world2, 5000, 443, 0x10, nil))
	f.Add(toGuest(ip4(header{src: world, dst: hostSide, protocol: ICMP}, icmp(3, 4, 1280, quote))), true)
	f.Add(toGuest(ip4(header{src: world, dst: hostSide, protocol: ICMP}, icmp(11, 0, 0, quote[:28]))), false)
	f.Fuzz(func(t *testing.T, packet []byte, established bool) {
		if len(packet) < 34 || len(packet) > 1514 {
			return
		}
		mark := uint32(0)
		if established {
			mark = markEstablished
		}
		verdict, out := b.run(t, b.ToGuest, mark, packet)
		if verdict == drop {
			return
		}
		if verdict != next || !established {
			t.Fatalf("verdict %d, established %v", int32(verdict), established)
		}
		if len(out) != len(packet) || netip.AddrFrom4([4]byte(out[30:34])).String() != guest || netip.AddrFrom4([4]byte(packet[30:34])).String() != hostSide {
			t.Fatalf("arrived as %x", out)
		}
		head := 14 + int(out[14]&15)*4
		if head <= len(packet) {
			if sound := checksum(packet[14:head]) == 0; sound != (checksum(out[14:head]) == 0) {
				t.Fatalf("the header's checksum was right: %v, and now is not the same: %x", sound, out)
			}
		}
	})
}

// FuzzRequest: whatever a caller writes becomes a policy that the kernel can hold, or an error of a known type.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{"203.0.113.7", "203.0.113.0/24 tcp/443", "*.example.org", "::/0", "1.1.1.1 udp/1-9", "fe80::1%eth0", "a..b", "0.0.0.0/0"} {
		f.Add(s, "0.0.0.0/0")
	}
	f.Fuzz(func(t *testing.T, allow, deny string) {
		p, err := Request{AllowOut: []string{allow}, DenyOut: []string{deny}}.Policy()
		var e *EntryError
		if err != nil {
			if !errors.As(err, &e) && !errors.Is(err, ErrTooManyRules) {
				t.Fatalf("%v is of no known type", err)
			}
			return
		}
		entries, err := p.entries()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, v := e.encode(); v.N == 0 || v.N > maxRulesAtPrefix {
				t.Fatalf("%d rules at %v", v.N, e.prefix)
			}
		}
		for _, r := range p.Allow { // what is printed can be read again
			if again, err := parseRule(r.String()); err != nil || again != r {
				t.Fatalf("%v became %v, %v", r, again, err)
			}
		}
	})
}
