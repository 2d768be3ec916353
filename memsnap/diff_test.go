package memsnap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// clone maps a snapshot's memory as a machine does, cut in two where RAM has its gap.
func clone(t *testing.T, s *Snapshot, cut int64) [][]byte {
	t.Helper()
	b, err := unix.Mmap(int(s.Memory.Fd()), 0, int(s.Manifest.Memory.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return [][]byte{b[:cut], b[cut:]}
}

// generation writes what ram has of its own as a diff to parent, and returns its directory.
func generation(t *testing.T, parent *Snapshot, ram [][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for i, f := range parent.Files() {
		if err := os.Link(f.Name(), filepath.Join(dir, MemoryName(i))); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, MemoryName(len(parent.Files()))))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	changed, err := PrivatePages(ram)
	if err != nil {
		t.Fatal(err)
	}
	info, err := WriteDiff(f, ram, changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, StateFile), []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteManifest(dir, parent.Manifest.Child(info)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sparse is a snapshot of which only a few pages hold data.
func sparse(t *testing.T, size int64, model map[int64]uint64) *Snapshot {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, memoryFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	// The same as WriteMemory does with the whole, which would read all of it.
	w := pageWriter{file: f, sum: crc32.New(castagnoli)}
	for page := range size / pageSize {
		if v, ok := model[page]; ok {
			stamp(b, page, v)
			if err := w.page(b[page*pageSize:][:pageSize]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := w.flush(); err != nil {
			t.Fatal(err)
		}
		w.next++
	}
	if err := errors.Join(w.flush(), f.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, StateFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteManifest(dir, Manifest{Memory: MemoryInfo{Bytes: size, Pages: w.pages, CRC32C: w.sum.Sum32()}}); err != nil {
		t.Fatal(err)
	}
	return reopen(t, dir)
}

func reopen(t *testing.T, dir string) *Snapshot {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// stamp fills a page with a value; 0 makes it a zero page.
func stamp(b []byte, page int64, v uint64) {
	for i := 0; i < pageSize; i += 8 {
		binary.LittleEndian.PutUint64(b[page*pageSize+int64(i):], v)
	}
}

// dump lists the pages of a memfd that hold data.
func dump(t *testing.T, f *os.File) map[int64]uint64 {
	t.Helper()
	pages := map[int64]uint64{}
	page := make([]byte, pageSize)
	for off := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return pages
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(page, start); err != nil {
			t.Fatal(err)
		}
		if v := binary.LittleEndian.Uint64(page); v != 0 {
			pages[start/pageSize] = v
		}
		if !bytes.Equal(page, bytes.Repeat(page[:8], pageSize/8)) {
			t.Fatalf("page %d is torn", start/pageSize)
		}
		off = start + pageSize
	}
}

// TestDiffChainEqualsAFullDump writes at random to clones of clones, across the gap of a machine with more than
// 3 GiB, and compares each restored memory with a model of it.
func TestDiffChainEqualsAFullDump(t *testing.T) {
	const size, cut = 4608 << 20, 3 << 30
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			model := map[int64]uint64{0: 1, size/pageSize - 1: 2, cut/pageSize - 1: 3, cut / pageSize: 4}
			for range 500 {
				model[random.Int64N(size/pageSize)] = random.Uint64() | 1
			}
			parent := sparse(t, size, model)
			for range 3 {
				ram := clone(t, parent, cut)
				whole := ram[0][:size:size]
				written := map[int64]bool{}
				write := func(page int64, v uint64) {
					stamp(whole, page, v)
					written[page] = true
					if delete(model, page); v != 0 {
						model[page] = v
					}
				}
				for page := range model {
					if random.IntN(4) == 0 {
						write(page, 0) // what the parent had is gone
					}
				}
				for range 200 {
					first, v := random.Int64N(size/pageSize-40), random.Uint64()|1
					for i := range random.Int64N(40) {
						write(first+i, v+uint64(i)*2)
					}
				}
				for i := int64(-3); i < 3; i++ {
					write(cut/pageSize+i, random.Uint64()|1)
				}
				changed, err := PrivatePages(ram)
				if err != nil {
					t.Fatal(err)
				}
				count := int64(0)
				for _, r := range changed {
					count += r.Pages
				}
				if count != int64(len(written)) {
					t.Errorf("%d private pages were found, %d were written", count, len(written))
				}
				dir := generation(t, parent, ram)
				next := reopen(t, dir)
				if got := dump(t, next.Memory); !reflect.DeepEqual(got, model) {
					t.Fatalf("restored memory has %d pages of data, want %d, or they differ", len(got), len(model))
				}
				overlaid(t, dir, parent, model)
				parent = next
			}
		})
	}
}

// overlaid restores the other way: the last diff over a private mapping of its parent.
func overlaid(t *testing.T, dir string, parent *Snapshot, model map[int64]uint64) {
	t.Helper()
	g, err := OpenGeneration(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Manifest.Parent() != parent.Manifest.ID {
		t.Fatalf("parent is %q, want %q", g.Manifest.Parent(), parent.Manifest.ID)
	}
	ram := clone(t, parent, pageSize*7)
	if err := ApplyDiff(g.Diff, g.LastDiff(), ram); err != nil {
		t.Fatal(err)
	}
	whole := ram[0][:parent.Manifest.Memory.Bytes:parent.Manifest.Memory.Bytes]
	for page, v := range model {
		if got := binary.LittleEndian.Uint64(whole[page*pageSize:]); got != v {
			t.Fatalf("page %d holds %#x, want %#x", page, got, v)
		}
	}
	for page := range dump(t, parent.Memory) {
		if _, ok := model[page]; !ok && !isZero(whole[page*pageSize:][:pageSize]) {
			t.Fatalf("page %d came back from the parent", page)
		}
	}
}

// TestScanFindsEachPageOnce has more runs than the kernel's buffer takes, by different remainders.
func TestScanFindsEachPageOnce(t *testing.T) {
	for _, count := range []int{1, 511, 512, 513, 1023, 1024, 1025, 3000} {
		b, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
			t.Fatal(err)
		}
		for i := range count {
			b[i*5*pageSize] = 1
		}
		got, err := PrivatePages([][]byte{b})
		if err != nil || len(got) != count || got[count-1] != (Run{int64(count-1) * 5, 1}) {
			t.Errorf("%d runs were found, %v; want %d", len(got), err, count)
		}
		unix.Munmap(b)
	}
}

func TestBothWaysFindTheSamePages(t *testing.T) {
	s := sparse(t, 64<<20, map[int64]uint64{0: 1, 100: 2, 101: 3, 16383: 4})
	ram := clone(t, s, 32<<20)
	whole := ram[0][: 64<<20 : 64<<20]
	_ = whole[100*pageSize] + whole[200*pageSize] // read only: stays shared
	for _, page := range []int64{5, 6, 7, 101, 8191, 8192, 16383} {
		stamp(whole, page, 9)
	}
	want := []Run{{5, 3}, {101, 1}, {8191, 2}, {16383, 1}}
	for name, way := range map[string]func(*os.File, []byte, *runs) error{"PAGEMAP_SCAN": scanRegion, "pagemap": readPagemap} {
		got, err := privatePages(ram, way)
		if errors.Is(err, unix.ENOTTY) {
			t.Logf("%s: this kernel has it not", name)
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
}

func TestDamagedGenerationsAreRefused(t *testing.T) {
	edit := func(old, new string) func(string) error {
		return func(dir string) error {
			name := filepath.Join(dir, manifestFile)
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if !bytes.Contains(data, []byte(old)) {
				return fmt.Errorf("%s has no %s", data, old)
			}
			return os.WriteFile(name, bytes.Replace(data, []byte(old), []byte(new), 1), 0o600)
		}
	}
	diff := MemoryName(1)
	for _, tc := range []struct {
		name   string
		damage func(dir string) error
		want   string
	}{
		{"page bit flip", func(dir string) error { return poke(filepath.Join(dir, diff), 100, 'Z') }, "content is damaged"},
		{"run points elsewhere", func(dir string) error { return poke(filepath.Join(dir, diff), 3*pageSize, 1) }, "content is damaged"},
		{"run is endless", func(dir string) error { return poke(filepath.Join(dir, diff), 3*pageSize+14, 1) }, "run 0 is of"},
		{"truncated", func(dir string) error { return os.Truncate(filepath.Join(dir, diff), 2*pageSize) }, "the manifest's pages and runs make"},
		{"missing", func(dir string) error { return os.Remove(filepath.Join(dir, diff)) }, "diff-1: no such file"},
		{"parent's memory missing", func(dir string) error { return os.Remove(filepath.Join(dir, memoryFile)) }, "memory: no such file"},
		{"parent's memory damaged", func(dir string) error { return poke(filepath.Join(dir, memoryFile), 0, 'Z') }, "content is damaged"},
		{"another parent", edit(`"parent": "`, `"parent": "0`), "diffs[0].parent is"},
		{"another ID", edit(`"id": "`, `"id": "0`), "id is"},
		{"more pages than memory", edit(`"runs": 2`, `"runs": 999999`), "runs 999999 is more than"},
		{"diffs in format 1", edit(`"format": 2`, `"format": 1`), "format 1 with 1 diffs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parent := sparse(t, 1<<20, map[int64]uint64{0: 7, 9: 8})
			ram := clone(t, parent, 8*pageSize)
			for _, page := range []int64{2, 3, 12} {
				stamp(ram[0][:1<<20:1<<20], page, 5)
			}
			dir := generation(t, parent, ram)
			if tc.name == "parent's memory damaged" {
				unlink(t, filepath.Join(dir, memoryFile))
			}
			if err := tc.damage(dir); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
		})
	}
}

// unlink gives a name an inode of its own.
func unlink(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err := errors.Join(err, os.Remove(name), os.WriteFile(name, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkPrivatePages compares the ways over 1 GiB of which 20 MB in runs of 4 pages were written.
func BenchmarkPrivatePages(b *testing.B) {
	mem, err := newMemfd("bench", 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Close()
	ram, err := unix.Mmap(int(mem.Fd()), 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(ram)
	for i := range int64(1280) {
		for j := range int64(4) {
			ram[(i*200+j)*pageSize] = 1
		}
	}
	b.Run("PAGEMAP_SCAN", func(b *testing.B) { benchmarkWay(b, ram, scanRegion) })
	b.Run("pagemap", func(b *testing.B) { benchmarkWay(b, ram, readPagemap) })
	b.Run("write", func(b *testing.B) {
		changed, err := PrivatePages([][]byte{ram})
		if err != nil {
			b.Fatal(err)
		}
		f, err := os.CreateTemp(b.TempDir(), "")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		b.SetBytes(20 << 20)
		for b.Loop() {
			if _, err := WriteDiff(f, [][]byte{ram}, changed); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkWay(b *testing.B, ram []byte, way func(*os.File, []byte, *runs) error) {
	for b.Loop() {
		found, err := privatePages([][]byte{ram}, way)
		if err != nil {
			b.Skip(err)
		}
		if len(found) != 1280 {
			b.Fatalf("%d runs", len(found))
		}
	}
}

// BenchmarkApplyDiff puts 20 MB in runs of 2 pages into a fresh clone of 256 MiB.
func BenchmarkApplyDiff(b *testing.B) {
	mem, err := newMemfd("bench", 256<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Close()
	template, err := unix.Mmap(int(mem.Fd()), 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(template)
	var changed []Run
	for i := range int64(2560) {
		changed = append(changed, Run{i * 25, 2})
		stamp(template, i*25, uint64(i+1))
		stamp(template, i*25+1, uint64(i+2))
	}
	f, err := os.CreateTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	info, err := WriteDiff(f, [][]byte{template}, changed)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(20 << 20)
	for b.Loop() {
		b.StopTimer()
		ram, err := unix.Mmap(int(mem.Fd()), 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := ApplyDiff(f, info, [][]byte{ram}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		unix.Munmap(ram)
		b.StartTimer()
	}
}
