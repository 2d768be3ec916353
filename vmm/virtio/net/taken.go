package net

import "cella.dev/cella/vmm/virtio"

// taken are chains that were taken from the receive queue and not filled yet, the oldest first. There are none between
// two critical sections: a snapshot finds them all in the queue. The zero value is ready for use.
type taken struct {
	chains [queueSize]virtio.Chain
	first  int
	n      int
	room   uint64 // bytes, in all
}

// at is the i-th of them; at(n) is where the next one goes.
func (t *taken) at(i int) *virtio.Chain { return &t.chains[(t.first+i)%queueSize] }

// added counts what was put at at(n).
func (t *taken) added() {
	t.room += t.at(t.n).InLen()
	t.n++
}

// drop forgets the oldest.
func (t *taken) drop() {
	t.room -= t.at(0).InLen()
	t.first = (t.first + 1) % queueSize
	t.n--
}

// clear forgets all, and keeps their memory for later ones.
func (t *taken) clear() { t.first, t.n, t.room = 0, 0, 0 }
