package vmm_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/nano"
)

// TestWorkingSetIsRecordedAndPrefaulted records what a clone touches, prepares another clone with it, and finds that
// one's pages its own before the guest has run, its count as it was saved.
func TestWorkingSetIsRecordedAndPrefaulted(t *testing.T) {
	pagemap, err := os.Open("/proc/self/pagemap")
	must(t, err)
	defer pagemap.Close()
	ram, state, saved := savedCounter(t, 1)
	recorder, out := restored(t, 1, ram, state)
	must(t, recorder.Record())
	must(t, recorder.Start())
	out.awaitLines(t, 2)
	must(t, recorder.Pause())
	ws, err := recorder.Touched(pagemap)
	must(t, err)
	counter := uint32(nano.CounterAddr / 4096)
	wrote := func(e vmm.Extent) bool { return e.Written && e.Page <= counter && counter < e.Page+e.Pages }
	if !slices.ContainsFunc(ws, wrote) {
		t.Fatalf("the page of the count, %d, is not written in %+v", counter, ws)
	}
	pages := 0
	for _, e := range ws {
		pages += int(e.Pages)
	}
	if pages > 16 {
		t.Errorf("%d pages recorded of a guest that touches a handful: %+v", pages, ws)
	}

	clone, out := restored(t, 1, ram, state)
	must(t, clone.Prefault(ws))
	before, err := clone.Touched(pagemap)
	must(t, err)
	if !slices.ContainsFunc(before, wrote) {
		t.Errorf("after Prefault, before Start: the page of the count is not the clone's own: %+v", before)
	}
	must(t, clone.Start())
	out.awaitLines(t, 3)
	checkCounts(t, out.counts(t), saved+1)
}

func TestPrefaultRefusesPagesOutsideRAM(t *testing.T) {
	ram, state, _ := savedCounter(t, 1)
	m, _ := restored(t, 1, ram, state)
	for _, e := range []vmm.Extent{
		{Page: nano.MemoryBytes / 4096, Pages: 1},
		{Page: nano.MemoryBytes/4096 - 1, Pages: 2},
		{Page: 0xffffffff, Pages: 0x7fffffff},
	} {
		if err := m.Prefault(vmm.WorkingSet{e}); err == nil || !strings.Contains(err.Error(), "outside RAM") {
			t.Errorf("%+v: %v, want a refusal", e, err)
		}
	}
}

func TestWorkingSetComesBack(t *testing.T) {
	want := vmm.WorkingSet{{Page: 0, Pages: 3}, {Page: 3, Pages: 1, Written: true}, {Page: 1 << 23, Pages: 1<<31 - 1, Written: true}}
	b, err := want.MarshalBinary()
	must(t, err)
	var got vmm.WorkingSet
	must(t, got.UnmarshalBinary(b))
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for i := range b {
		damaged := slices.Clone(b)
		damaged[i] ^= 0x10
		if err := new(vmm.WorkingSet).UnmarshalBinary(damaged); err == nil {
			t.Errorf("byte %d changed: accepted", i)
		}
		if err := new(vmm.WorkingSet).UnmarshalBinary(b[:i]); err == nil {
			t.Errorf("cut after %d bytes: accepted", i)
		}
	}
}
