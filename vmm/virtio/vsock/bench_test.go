package vsock

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

// echo runs the guest's side until stop is closed: it answers requests, sends data back, confirms closings.
func (g *guest) echo(stop <-chan struct{}) {
	streams := map[key]*stream{}
	for {
		p, ok := g.poll(true)
		if !ok {
			if g.Queues[queueRX].Arm() {
				continue
			}
			select {
			case <-g.IRQ.C:
				g.Ack()
				continue
			case <-stop:
				return
			}
		}
		k := key{p.srcPort, p.dstPort}
		s := streams[k]
		if s == nil {
			s = &stream{g: g, port: p.dstPort, host: p.srcPort, bufLen: 256 << 10}
			streams[k] = s
		}
		s.got += p.len
		switch p.op {
		case opRequest:
			s.send(opResponse, 0, "")
		case opRW:
			s.send(opRW, 0, p.data)
		case opCreditRequest:
			s.send(opCreditUpdate, 0, "")
		case opShutdown:
			s.send(opRST, 0, "")
			delete(streams, k)
		case opRST:
			delete(streams, k)
		}
	}
}

func echoGuest(b *testing.B) *guest {
	g := newGuest(b).up(120).listen()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); g.echo(stop) }()
	b.Cleanup(func() { close(stop); <-done })
	return g
}

// BenchmarkEcho is one message there and back on an open connection.
func BenchmarkEcho(b *testing.B) {
	for _, n := range []int{64, 4000, 60 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			c := echoGuest(b).dial("")
			c.line(fmt.Sprintf("OK %d", firstPort))
			msg, got := []byte(strings.Repeat("x", n)), make([]byte, n)
			b.SetBytes(int64(2 * n))
			b.ReportAllocs()
			for b.Loop() {
				c.write(string(msg))
				if _, err := io.ReadFull(c.r, got); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkConnectEcho is what each exec does: connect, one request sent along, its reply, close.
func BenchmarkConnectEcho(b *testing.B) {
	g := echoGuest(b)
	b.ReportAllocs()
	for b.Loop() {
		c := g.dial("request\n")
		if _, err := c.r.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		c.line("request")
		c.Close()
	}
}

// BenchmarkParallelEcho is 32 connections at once.
func BenchmarkParallelEcho(b *testing.B) {
	g := echoGuest(b)
	const conns = 32
	var clients []*client
	for range conns {
		c := g.dial("")
		if _, err := c.r.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		clients = append(clients, c)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for range (b.N + i) / conns {
				c.write("0123456789abcdef")
				c.expect("0123456789abcdef")
			}
		})
	}
	wg.Wait()
}
