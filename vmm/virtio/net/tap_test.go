package net_test

import (
	"bytes"
	"os"
	"testing"

	"cella.dev/cella/netvs/testnet"
	"cella.dev/cella/vmm/virtio/mmio"
	virtio "cella.dev/cella/vmm/virtio/net"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// TestTap asks the kernel behind a TAP for its address, whatever was negotiated. It needs root.
func TestTap(t *testing.T) {
	ns, err := testnet.NewNamespace()
	virtiotest.Must(t, err)
	defer ns.Close()
	var tap *os.File
	virtiotest.Must(t, ns.Do(func() (err error) {
		if tap, err = testnet.OpenTap("t0"); err != nil {
			return err
		}
		return testnet.AddAddr("t0", "192.0.2.1/24")
	}))
	defer tap.Close()
	dev, err := virtio.New(tap, virtio.Config{MAC: guestMAC})
	virtiotest.Must(t, err)
	mem, irq := virtiotest.NewMemory(1<<23), virtiotest.NewInterrupt()
	transport := mmio.New(mem, dev, irq)
	g := &guest{Driver: virtiotest.NewDriver(transport, mem, irq, 0x1000), tb: t, dev: dev, transport: transport}
	for _, features := range []uint64{all, mac, all &^ guestCSum, all &^ guestTSO4 &^ guestTSO6} {
		virtiotest.Must(t, g.Init(features|virtiotest.Version1, 2, 64))
		at := g.offer(64, 2048)
		question := append(bytes.Repeat([]byte{0xff}, 6), guestMAC...)
		question = append(question, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
		question = append(append(question, guestMAC...), 192, 0, 2, 2)
		question = append(question, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1)
		g.put(make([]byte, hdrSize), question)
		for {
			_, frame := g.receive(at)
			if len(frame) < 42 || frame[12] != 8 || frame[13] != 6 {
				continue // the kernel has words of its own, for IPv6
			}
			if !bytes.Equal(frame[:6], guestMAC) || !bytes.Equal(frame[28:32], []byte{192, 0, 2, 1}) {
				t.Errorf("features %#x: answer %x", features, frame)
			}
			break
		}
	}
	transport.Close()
	virtiotest.Must(t, dev.Close())
}
