package netvs

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestRecycledTapIsAsGoodAsNew(t *testing.T) {
	n := newNetwork(t)
	tp, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	// A frame waits in the tap for the guest that is gone: the program to_guest is asked nothing, so that it gets there.
	for _, l := range tp.links {
		if err := errors.Join(l.Unpin(), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
	tp.links = nil
	if err := removeRules(n.cfg); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, make([]byte, 60), 0, &unix.SockaddrLinklayer{Ifindex: tp.index, Halen: 6}); err != nil {
		t.Fatal(err)
	}
	counters := make([]tapCounters, ebpf.MustPossibleCPU())
	counters[0].Packets[DropPolicy] = 9
	if err := n.objects.Traffic.Put(uint32(tp.index), counters); err != nil {
		t.Fatal(err)
	}
	if err := n.recycle(tp); err != nil {
		t.Fatal(err)
	}
	if err := n.objects.Traffic.Lookup(uint32(tp.index), &counters); err != nil || counters[0].Packets[DropPolicy] != 0 {
		t.Errorf("counters %v, %v", counters[0], err)
	}
	err = control(tp.file, func(fd int) error {
		_, err := unix.Read(fd, make([]byte, 2048))
		return err
	})
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("reading the recycled tap: %v, want nothing there", err)
	}
	if err := n.retire(tp); err != nil {
		t.Error(err)
	}
}

func TestTapThatAVMMStillHoldsIsNotUsedAgain(t *testing.T) {
	n := newNetwork(t)
	tp, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	held := dup(t, tp.file)
	defer held.Close()
	if err := n.recycle(tp); !errors.Is(err, unix.EBUSY) {
		t.Errorf("got %v, want EBUSY", err)
	}
	if err := n.retire(tp); err != nil {
		t.Fatal(err)
	}
	there, err := taps(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := there[tp.index]; ok {
		t.Error("the tap is still there")
	}
}
