package vsock

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"cella.dev/cella/vmm/virtio/virtiotest"
)

// quiet brings up a connected guest whose interrupts have all been taken.
func quiet(t *testing.T) (*guest, *client, *stream) {
	t.Helper()
	g := newGuest(t).up(32).listen()
	c, s := g.connect()
	for _, q := range g.Queues {
		for {
			if _, ok := q.Take(); !ok {
				break
			}
		}
		q.Arm()
	}
	g.Ack()
	select {
	case <-g.IRQ.C:
	default:
	}
	return g, c, s
}

func TestTakenPacketsAreToldTogetherWithAPacketToTheGuest(t *testing.T) {
	g, c, s := quiet(t)
	before := g.IRQ.Count.Load()
	for range 5 {
		s.send(opRW, 0, "x")
		g.Queues[queueTX].Arm()
		c.expect("x")
	}
	if n := g.IRQ.Count.Load() - before; n != 0 {
		t.Errorf("%d interrupts only to say that packets were taken, want none yet", n)
	}
	c.write("y")
	if got := s.data(1); got != "y" {
		t.Errorf("guest got %q", got)
	}
	if n := g.IRQ.Count.Load() - before; n != 1 {
		t.Errorf("%d interrupts, want 1 for everything", n)
	}
}

func TestTakenPacketsAreToldInTheEnd(t *testing.T) {
	t.Run("after a while", func(t *testing.T) {
		g, _, s := quiet(t)
		s.send(opRW, 0, "x")
		select {
		case <-g.IRQ.C:
		case <-time.After(patience):
			t.Error("the guest was never told")
		}
	})
	t.Run("after many", func(t *testing.T) {
		g, _, s := quiet(t)
		before := g.IRQ.Count.Load()
		for range holdPackets {
			s.send(opRW, 0, "x")
		}
		if n := g.IRQ.Count.Load() - before; n != 1 {
			t.Errorf("%d interrupts after %d packets, want 1", n, holdPackets)
		}
	})
	t.Run("after a restore", func(t *testing.T) {
		g, _, s := quiet(t)
		s.send(opShutdown, shutdownBoth, "")
		g.expect(opRST)
		g.Ack()
		s.send(opRST, 0, "") // held: there is nothing to answer
		g.Queues[queueTX].Arm()
		g.snapshot()
		g.tr.Kick()
		if n := g.IRQ.Count.Load(); n != 0 {
			t.Errorf("the restored guest is interrupted at once, %d times", n)
		}
		select {
		case <-g.IRQ.C:
		case <-time.After(patience):
			t.Error("the restored guest was never told")
		}
	})
}

func TestManyPacketsInOneInterrupt(t *testing.T) {
	g, c, s := quiet(t)
	before := g.IRQ.Count.Load()
	c.write(text(8 * (bufSize - headerSize)))
	for range 8 {
		g.expect(opRW)
	}
	// The first buffer's worth tells the device that there is more; the rest comes in one read.
	if n := g.IRQ.Count.Load() - before; n > 3 {
		t.Errorf("%d interrupts for 8 packets", n)
	}
	s.got = 8 * (bufSize - headerSize)
	g.silent()
}

func TestConnectCostsFewInterrupts(t *testing.T) {
	g := newGuest(t).up(32).listen()
	g.Queues[queueRX].Arm()
	c := g.dial("request")
	s := g.answer()
	before := g.IRQ.Count.Load()
	if got := s.data(7); got != "request" {
		t.Errorf("guest got %q", got)
	}
	s.send(opRW, 0, "reply")
	c.line(fmt.Sprintf("OK %d", s.host))
	c.expect("reply")
	s.send(opShutdown, shutdownBoth, "")
	g.expect(opRST)
	c.eof()
	if n := g.IRQ.Count.Load() - before; n > 2 {
		t.Errorf("%d interrupts from the response to the end, want at most 2", n)
	}
	virtiotest.Must(t, g.dev.WaitIdle(t.Context()))
}

func TestClosedTransportIsLeftAlone(t *testing.T) {
	g, c, s := quiet(t)
	fillUp(s) // a goroutine waits to write, one to read, a timer to tell the guest
	waiting := g.dial("")
	g.expect(opRequest)
	g.tr.Pause()
	before := bytes.Clone(g.Mem.RAM)
	g.tr.Close()
	waiting.line("ERR connect to guest port 1024: the guest reset its vsock driver")
	if _, err := io.Copy(io.Discard, c.r); err != nil {
		t.Error(err)
	}
	g.idle()
	if !bytes.Equal(before, g.Mem.RAM) {
		t.Error("guest memory changed after Close")
	}
}
