package netvs

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// manyRules is a policy of n rules that none covers another.
func manyRules(n int) *Policy {
	p := &Policy{Internet: true}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{byte(11 + i>>14), byte(i >> 6), byte(i << 2), 0})
		p.Deny = append(p.Deny, Rule{Prefix: netip.PrefixFrom(addr, 30)})
	}
	return p
}

// BenchmarkFromGuest is the program alone, per packet, as the kernel times it.
func BenchmarkFromGuest(b *testing.B) {
	for _, n := range []int{0, 10, 4000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			s := newBench(b)
			s.attach(b, manyRules(n))
			_, d, err := s.FromGuest.Benchmark(probe(world, TCP, 443), b.N, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(d.Nanoseconds()), "ns/op")
		})
	}
}

// BenchmarkSetPolicy is a whole replacement, one after the other; the wait for the grace period is in it.
func BenchmarkSetPolicy(b *testing.B) {
	for _, n := range []int{10, 4000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			net := newNetwork(b)
			s, err := net.Attach("a", &Policy{})
			if err != nil {
				b.Fatal(err)
			}
			p := manyRules(n)
			for b.Loop() {
				if err := s.SetPolicy(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// waitForTap polls, in a benchmark's pause, until the pool has a tap.
func waitForTap(b *testing.B, n *Network) {
	for range 1000 {
		c, err := n.Census()
		if err != nil {
			b.Fatal(err)
		}
		if c.Ready > 0 && c.Back == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	b.Fatal("the pool stays empty")
}

// BenchmarkAttach is a claim of a ready tap. The pool fills while the clock stands still.
func BenchmarkAttach(b *testing.B) {
	for _, n := range []int{0, 10} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			net := newNetwork(b)
			p := manyRules(n)
			for range b.N {
				b.StopTimer()
				waitForTap(b, net)
				b.StartTimer()
				s, err := net.Attach("a", p)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
