package netvs

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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

// BenchmarkEntries folds a policy.
func BenchmarkEntries(b *testing.B) {
	p := manyRules(4000)
	for b.Loop() {
		if _, err := p.entries(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPrograms sends datagrams to and fro and asks the kernel what the programs took of it, a packet.
func BenchmarkPrograms(b *testing.B) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, rules := range []int{0, 10, 4000} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			w, n := newWorld(b), newNetwork(b)
			g := attachGuest(b, n, "a", manyRules(rules))
			w.listenUDP(b, world+":7000", whoami)
			c := g.mustDial(b, "udp4", world+":7000")
			ask(b, c, "?") // the first of a flow costs more
			out, in := runTime(b, n.objects.FromGuest), runTime(b, n.objects.ToGuest)
			for b.Loop() {
				ask(b, c, "?")
			}
			b.ReportMetric(runTime(b, n.objects.FromGuest).since(out), "from_guest-ns/packet")
			b.ReportMetric(runTime(b, n.objects.ToGuest).since(in), "to_guest-ns/packet")
		})
	}
}

type programTime struct{ ns, runs uint64 }

func runTime(b *testing.B, p *ebpf.Program) programTime {
	s, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return programTime{uint64(s.Runtime), s.RunCount}
}

func (t programTime) since(before programTime) float64 {
	return float64(t.ns-before.ns) / float64(max(t.runs-before.runs, 1))
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
