package netvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"
)

// Denied is a packet that was not let through.
type Denied struct {
	// Sandbox is the ID given to Attach or Adopt.
	Sandbox string
	// Age is how long ago it happened.
	Age time.Duration
	// Reason says why, and with PassedIn never occurs.
	Reason   Reason
	Protocol Protocol
	// From and To are as the packet had them; the port is 0 where there is none.
	From, To netip.AddrPort
	Bytes    int
}

// Events calls f for each denied packet, one at a time, until the network is closed; then it returns ErrClosed. What
// f misses because it is slow is counted in Stats.EventsDropped. One caller at a time.
func (n *Network) Events(f func(Denied)) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.readers.Add(1)
	n.mu.Unlock()
	defer n.readers.Done()
	r, err := ringbuf.NewReader(n.objects.Events)
	if err != nil {
		return fmt.Errorf("read denied packets: %w", err)
	}
	defer r.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-n.closing:
			r.Close()
		case <-stop:
		}
	}()
	for {
		rec, err := r.Read()
		if errors.Is(err, os.ErrClosed) {
			return ErrClosed
		}
		if err != nil {
			return fmt.Errorf("read denied packets: %w", err)
		}
		if d, ok := n.decode(rec.RawSample); ok {
			f(d)
		}
	}
}

// decode reads a struct event. Those of sandboxes that are gone by now are nobody's.
func (n *Network) decode(b []byte) (Denied, bool) {
	var e tapEvent
	if _, err := binary.Decode(b, binary.NativeEndian, &e); err != nil {
		return Denied{}, false
	}
	n.mu.Lock()
	s, ok := n.used[e.Epoch]
	n.mu.Unlock()
	if !ok {
		return Denied{}, false
	}
	return Denied{
		Sandbox: s.ID, Age: sinceBoot() - time.Duration(e.Time), Reason: Reason(e.Reason), Protocol: Protocol(e.Protocol),
		From: netip.AddrPortFrom(hostOrder(e.Source), e.SourcePort), To: netip.AddrPortFrom(hostOrder(e.Destination), e.DestinationPort),
		Bytes: int(e.Length),
	}, true
}

// hostOrder undoes networkOrder.
func hostOrder(a uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, a)))
}
