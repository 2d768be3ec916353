package netvs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// liveTrie replaces a policy without a gap and without a wait. A tap has two places in the map of tries: programs
// read the live one, and the other holds an empty trie, ready to be filled. A replacement fills that, and then points
// the sandbox at it in one write. Only then, in the background, does a new empty trie take the old one's place: that
// update waits until no program can still be reading the old trie (an RCU grace period, 8 to 20 ms), which is what
// makes the next replacement safe.
type liveTrie struct {
	first  uint32 // of the two places
	live   uint32 // 0 or 1
	spare  *ebpf.Map
	settle chan error // gets the outcome of the background's work; nil where there is none
}

// prepare puts an empty trie into the place that is not live. It waits a grace period.
func (l *liveTrie) prepare(policies *ebpf.Map) error {
	trie, err := newTrie()
	if err != nil {
		return err
	}
	if err := policies.Put(l.first+1-l.live, trie); err != nil {
		return errors.Join(fmt.Errorf("put a spare trie in its place: %w", err), trie.Close())
	}
	l.spare = trie
	return nil
}

// fill fills the spare trie, and returns its place for the sandbox to point at. A trie that was only half filled is
// thrown away.
func (l *liveTrie) fill(policies *ebpf.Map, entries []entry) (uint32, error) {
	if err := l.wait(); err != nil {
		l.settleIn(policies)
		return 0, err
	}
	if err := fill(l.spare, entries); err != nil {
		err = errors.Join(err, l.spare.Close())
		l.settleIn(policies)
		return 0, err
	}
	return l.first + 1 - l.live, nil
}

// flip is called once the sandbox points at the filled trie.
func (l *liveTrie) flip(policies *ebpf.Map) error {
	err := l.spare.Close()
	l.live = 1 - l.live
	l.settleIn(policies)
	return err
}

// settleIn makes a new spare in the background.
func (l *liveTrie) settleIn(policies *ebpf.Map) {
	done := make(chan error, 1)
	l.spare, l.settle = nil, done
	next := liveTrie{first: l.first, live: l.live}
	go func() {
		err := next.prepare(policies)
		l.spare = next.spare // read only after done
		done <- err
	}()
}

// wait is over when the spare is ready.
func (l *liveTrie) wait() error {
	if l.settle == nil {
		return nil
	}
	err := <-l.settle
	l.settle = nil
	return err
}

// empty frees the live trie, which no sandbox points at any more.
func (l *liveTrie) empty(policies *ebpf.Map) error {
	if err := l.wait(); err != nil {
		return err
	}
	if err := policies.Delete(l.first + l.live); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove a policy's trie: %w", err)
	}
	return nil
}

// remove empties both places.
func (l *liveTrie) remove(policies *ebpf.Map) error {
	errs := []error{l.wait()}
	if l.spare != nil {
		errs = append(errs, l.spare.Close())
		l.spare = nil
	}
	for i := range uint32(2) {
		if err := policies.Delete(l.first + i); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove a policy's trie: %w", err))
		}
	}
	return errors.Join(errs...)
}
