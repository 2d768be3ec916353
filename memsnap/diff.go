package memsnap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// DiffInfo describes a diff file: the pages in which one memory differs from another.
//
//	page … page | run … run       pages without gaps, then where they go
//
// A run is 16 bytes, little-endian: first page (8 bytes), number of pages (7 bytes, the low ones) and 1 if the
// pages are all zero and not in the file (the highest byte). Runs ascend and do not overlap.
type DiffInfo struct {
	// ID is that of the snapshot the diff was written for; Parent that of the one it is a diff to.
	ID     string `json:"id"`
	Parent string `json:"parent"`
	// Pages counts the pages in the file, Runs the runs.
	Pages int64 `json:"pages"`
	Runs  int64 `json:"runs"`
	// CRC32C covers the whole file.
	CRC32C uint32 `json:"crc32c"`
}

const (
	runBytes = 16
	zeroRun  = 1 << 56
	// gatherBytes and gatherPieces bound what one system call moves. The second is the kernel's IOV_MAX.
	gatherBytes  = 1 << 20
	gatherPieces = 1024
)

// WriteDiff writes the given pages of RAM to an empty file. The file is not synced.
func WriteDiff(f *os.File, ram [][]byte, changed []Run) (DiffInfo, error) {
	w := diffWriter{gather: gather{sum: crc32.New(castagnoli), move: writeAll, file: f}}
	for _, r := range changed {
		err := eachPiece(ram, r, func(first int64, piece []byte) error { return w.stretch(first, piece) })
		if err != nil {
			return DiffInfo{}, fmt.Errorf("write diff: %w", err)
		}
	}
	if err := w.flush(); err != nil {
		return DiffInfo{}, fmt.Errorf("write diff: %w", err)
	}
	w.sum.Write(w.index)
	if _, err := f.WriteAt(w.index, w.off); err != nil {
		return DiffInfo{}, fmt.Errorf("write diff: %w", err)
	}
	return DiffInfo{Pages: w.off / pageSize, Runs: int64(len(w.index) / runBytes), CRC32C: w.sum.Sum32()}, nil
}

type diffWriter struct {
	gather
	index []byte
}

// stretch adds pages that lie in one piece in memory.
func (w *diffWriter) stretch(first int64, piece []byte) error {
	for len(piece) > 0 {
		zero := isZero(piece[:pageSize])
		n := pageSize
		for n < len(piece) && n < gatherBytes && isZero(piece[n:n+pageSize]) == zero {
			n += pageSize
		}
		w.index = appendRun(w.index, first, int64(n/pageSize), zero)
		if !zero {
			if err := w.add(piece[:n]); err != nil {
				return err
			}
		}
		first += int64(n / pageSize)
		piece = piece[n:]
	}
	return nil
}

// appendRun adds a run to the index, to the last one if it goes on where that ends.
func appendRun(index []byte, first, pages int64, zero bool) []byte {
	flag := uint64(0)
	if zero {
		flag = zeroRun
	}
	if n := len(index) - runBytes; n >= 0 {
		start, count := binary.LittleEndian.Uint64(index[n:]), binary.LittleEndian.Uint64(index[n+8:])
		if count&zeroRun == flag && start+count&^uint64(zeroRun) == uint64(first) {
			binary.LittleEndian.PutUint64(index[n+8:], count+uint64(pages))
			return index
		}
	}
	index = binary.LittleEndian.AppendUint64(index, uint64(first))
	return binary.LittleEndian.AppendUint64(index, uint64(pages)|flag)
}

// ApplyDiff puts the pages of a diff into RAM, which holds the content of its parent. A diff that does not
// match info is refused; RAM is of no use then.
func ApplyDiff(f *os.File, info DiffInfo, ram [][]byte) error {
	index, err := readIndex(f, info, ram)
	if err != nil {
		return fmt.Errorf("apply diff %s: %w", f.Name(), err)
	}
	g := gather{sum: crc32.New(castagnoli), move: readAll, file: f}
	for i := 0; i < len(index); i += runBytes {
		count := binary.LittleEndian.Uint64(index[i+8:])
		r := Run{int64(binary.LittleEndian.Uint64(index[i:])), int64(count &^ uint64(zeroRun))}
		err := eachPiece(ram, r, func(_ int64, piece []byte) error {
			if count&zeroRun != 0 {
				clear(piece)
				return nil
			}
			// Copying the parent's page in one go is cheaper than a fault for each page that is read into; where
			// the kernel (before 5.14) can't, the faults do it.
			_ = unix.Madvise(piece, unix.MADV_POPULATE_WRITE)
			return g.add(piece)
		})
		if err != nil {
			return fmt.Errorf("apply diff %s: %w", f.Name(), err)
		}
	}
	if err := g.flush(); err != nil {
		return fmt.Errorf("apply diff %s: %w", f.Name(), err)
	}
	g.sum.Write(index)
	if got := g.sum.Sum32(); got != info.CRC32C {
		return fmt.Errorf("apply diff %s: content is damaged: its crc32c is %08x, the manifest says %08x", f.Name(), got, info.CRC32C)
	}
	return nil
}

// readIndex reads the runs and checks, before any page is touched, that they fit the file and the memory.
func readIndex(f *os.File, info DiffInfo, ram [][]byte) ([]byte, error) {
	var total int64
	for _, region := range ram {
		total += int64(len(region) / pageSize)
	}
	if info.Pages < 0 || info.Pages > total || info.Runs < 0 || info.Runs > total {
		return nil, fmt.Errorf("pages %d or runs %d is more than the memory's %d pages", info.Pages, info.Runs, total)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if want := info.Pages*pageSize + info.Runs*runBytes; st.Size() != want {
		return nil, fmt.Errorf("%d bytes, the manifest's pages and runs make %d", st.Size(), want)
	}
	index := make([]byte, info.Runs*runBytes)
	if _, err := f.ReadAt(index, info.Pages*pageSize); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var next, stored int64
	for i := 0; i < len(index); i += runBytes {
		first := int64(binary.LittleEndian.Uint64(index[i:]))
		count := binary.LittleEndian.Uint64(index[i+8:])
		pages := int64(count &^ uint64(zeroRun))
		if first < next || pages <= 0 || pages > total || first > total-pages {
			return nil, fmt.Errorf("content is damaged: run %d is of %d pages from page %d on", i/runBytes, pages, first)
		}
		next = first + pages
		if count&zeroRun == 0 {
			stored += pages
		}
	}
	if stored != info.Pages {
		return nil, fmt.Errorf("content is damaged: runs hold %d pages, the manifest says %d", stored, info.Pages)
	}
	return index, nil
}

// eachPiece cuts a run at the borders of regions.
func eachPiece(ram [][]byte, r Run, do func(first int64, piece []byte) error) error {
	base := int64(0)
	for _, region := range ram {
		pages := int64(len(region) / pageSize)
		if from, to := max(r.First, base), min(r.First+r.Pages, base+pages); from < to {
			if err := do(from, region[(from-base)*pageSize:(to-base)*pageSize]); err != nil {
				return err
			}
		}
		base += pages
	}
	return nil
}

// gather moves pages that lie here and there in memory from or to a file where they lie together, many with
// one system call.
type gather struct {
	file   *os.File
	move   func(fd int, pieces [][]byte, off int64) error
	sum    hash.Hash32
	off    int64
	pieces [][]byte
	bytes  int
}

func (g *gather) add(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), gatherBytes-g.bytes)
		g.pieces = append(g.pieces, p[:n])
		g.bytes += n
		p = p[n:]
		if g.bytes == gatherBytes || len(g.pieces) == gatherPieces {
			if err := g.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *gather) flush() error {
	if g.bytes == 0 {
		return nil
	}
	if err := g.move(int(g.file.Fd()), g.pieces, g.off); err != nil {
		return err
	}
	for _, p := range g.pieces {
		g.sum.Write(p)
	}
	g.off += int64(g.bytes)
	g.pieces, g.bytes = g.pieces[:0], 0
	return nil
}

func writeAll(fd int, pieces [][]byte, off int64) error {
	return moveAll(unix.Pwritev, fd, pieces, off)
}
func readAll(fd int, pieces [][]byte, off int64) error { return moveAll(unix.Preadv, fd, pieces, off) }

// moveAll repeats a system call that may do less than it was asked for.
func moveAll(call func(int, [][]byte, int64) (int, error), fd int, pieces [][]byte, off int64) error {
	rest := append([][]byte(nil), pieces...)
	for len(rest) > 0 {
		n, err := call(fd, rest, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		off += int64(n)
		for len(rest) > 0 && n >= len(rest[0]) {
			n -= len(rest[0])
			rest = rest[1:]
		}
		if n > 0 {
			rest[0] = rest[0][n:]
		}
	}
	return nil
}
