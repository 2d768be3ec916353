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

const pageSize = 4096

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MemoryInfo describes a memory file.
type MemoryInfo struct {
	// Bytes is the size of guest RAM, and of the file.
	Bytes int64 `json:"bytes"`
	// Pages counts the pages that are not all zero; the file holds only these.
	Pages int64 `json:"pages"`
	// CRC32C covers each such page's number (64-bit little-endian) and content, in order.
	CRC32C uint32 `json:"crc32c"`
}

// WriteMemory writes RAM, given as consecutive regions, to an empty file at its linear offset. Zero pages
// stay holes. The file is not synced.
func WriteMemory(f *os.File, ram [][]byte) (MemoryInfo, error) {
	w := pageWriter{file: f, sum: crc32.New(castagnoli)}
	for _, region := range ram {
		if len(region)%pageSize != 0 {
			return MemoryInfo{}, fmt.Errorf("write memory: region of %d bytes is not whole pages", len(region))
		}
		for len(region) > 0 {
			if err := w.page(region[:pageSize]); err != nil {
				return MemoryInfo{}, fmt.Errorf("write memory: %w", err)
			}
			region = region[pageSize:]
		}
	}
	if err := w.flush(); err != nil {
		return MemoryInfo{}, fmt.Errorf("write memory: %w", err)
	}
	size := w.next * pageSize
	if err := f.Truncate(size); err != nil {
		return MemoryInfo{}, fmt.Errorf("write memory: %w", err)
	}
	return MemoryInfo{Bytes: size, Pages: w.pages, CRC32C: w.sum.Sum32()}, nil
}

// pageWriter gathers runs of non-zero pages, which are contiguous in RAM, into large writes.
type pageWriter struct {
	file  *os.File
	sum   hash.Hash32
	next  int64 // number of the page that comes next
	pages int64
	run   []byte // pending pages, the last of which is page next-1
}

func (w *pageWriter) page(p []byte) error {
	if isZero(p) {
		if err := w.flush(); err != nil {
			return err
		}
		w.next++
		return nil
	}
	sumPage(w.sum, w.next, p)
	w.run = append(w.run, p...)
	w.next++
	w.pages++
	if len(w.run) >= 1<<20 {
		return w.flush()
	}
	return nil
}

func (w *pageWriter) flush() error {
	if len(w.run) == 0 {
		return nil
	}
	_, err := w.file.WriteAt(w.run, w.next*pageSize-int64(len(w.run)))
	w.run = w.run[:0]
	return err
}

func sumPage(sum hash.Hash32, number int64, p []byte) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(number))
	sum.Write(n[:])
	sum.Write(p)
}

// isZero reads eight bytes at a time; pages are looked at once for each snapshot, all of them.
func isZero(p []byte) bool {
	for len(p) >= 32 {
		if binary.LittleEndian.Uint64(p)|binary.LittleEndian.Uint64(p[8:])|
			binary.LittleEndian.Uint64(p[16:])|binary.LittleEndian.Uint64(p[24:]) != 0 {
			return false
		}
		p = p[32:]
	}
	return true
}

// loadMemory reads a memory file, and the diffs on it in order, into a sealed memfd that clones map MAP_PRIVATE.
// Its pages can never change again, whoever holds the descriptor. Files that do not match m are refused.
func loadMemory(files []*os.File, m Manifest) (*os.File, error) {
	st, err := files[0].Stat()
	if err != nil {
		return nil, fmt.Errorf("load memory: %w", err)
	}
	if st.Size() != m.Memory.Bytes {
		return nil, fmt.Errorf("load memory %s: %d bytes, the manifest says %d", files[0].Name(), st.Size(), m.Memory.Bytes)
	}
	mem, err := newMemfd("cella-template", m.Memory.Bytes)
	if err != nil {
		return nil, err
	}
	err = copyPages(mem, files[0], m.Memory)
	if err != nil {
		err = fmt.Errorf("load memory %s: %w", files[0].Name(), err)
	} else {
		err = applyDiffs(mem, files[1:], m)
	}
	if err == nil {
		err = seal(mem)
	}
	if err != nil {
		mem.Close()
		return nil, err
	}
	return mem, nil
}

func applyDiffs(mem *os.File, files []*os.File, m Manifest) error {
	if len(files) == 0 {
		return nil
	}
	ram, err := unix.Mmap(int(mem.Fd()), 0, int(m.Memory.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memfd: %w", err)
	}
	defer unix.Munmap(ram) // before it is sealed: the kernel refuses to seal what may be written
	for i, f := range files {
		if err := ApplyDiff(f, m.Diffs[i], [][]byte{ram}); err != nil {
			return err
		}
	}
	return nil
}

func copyPages(dst, src *os.File, info MemoryInfo) error {
	sum := crc32.New(castagnoli)
	buf := make([]byte, 1<<20)
	var pages int64
	for off := int64(0); off < info.Bytes; {
		start, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		// A filesystem may call any hole data; only whole pages were written.
		start -= start % pageSize
		n, err := src.ReadAt(buf[:min(int64(len(buf)), info.Bytes-start)], start)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n%pageSize != 0 {
			return fmt.Errorf("short read of %d bytes at %d", n, start)
		}
		for i := 0; i < n; {
			// A run of pages that hold data is one write; zero pages stay holes.
			run := i
			for ; run < n && !isZero(buf[run:run+pageSize]); run += pageSize {
				sumPage(sum, (start+int64(run))/pageSize, buf[run:run+pageSize])
				pages++
			}
			if run == i {
				i += pageSize
				continue
			}
			if _, err := dst.WriteAt(buf[i:run], start+int64(i)); err != nil {
				return err
			}
			i = run
		}
		off = start + int64(n)
	}
	if pages != info.Pages || sum.Sum32() != info.CRC32C {
		return fmt.Errorf("content is damaged: %d pages with checksum %08x, the manifest says %d with %08x",
			pages, sum.Sum32(), info.Pages, info.CRC32C)
	}
	return nil
}

func newMemfd(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("size memfd %s: %w", name, err)
	}
	return f, nil
}

// seal forbids writes and changes of size. Private mappings may still be written by their owners.
func seal(f *os.File) error {
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal memfd %s: %w", f.Name(), err)
	}
	return nil
}
