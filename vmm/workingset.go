package vmm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/boot"
	"cella.dev/cella/vmm/kvm"
)

// Extent is a run of RAM pages, counted from the start of RAM without the gap below 4 GiB.
type Extent struct {
	Page, Pages uint32
	// Written says that the guest wrote the pages, so that a clone needs copies of its own.
	Written bool
}

// WorkingSet is what a guest touches in its first moments after a restore, in ascending order. Every clone of a
// snapshot touches nearly the same, so that a set recorded once serves all.
type WorkingSet []Extent

// Encoding of a working set: a magic number with the version, 8 bytes for each extent (page, then pages<<1 | written),
// and the CRC-32C of all that; little-endian.
const (
	workingSetMagic = "cellaws1"
	extentSize      = 8
)

// MarshalBinary implements encoding.BinaryMarshaler.
func (ws WorkingSet) MarshalBinary() ([]byte, error) {
	b := make([]byte, 0, len(workingSetMagic)+extentSize*len(ws)+4)
	b = append(b, workingSetMagic...)
	for _, e := range ws {
		b = binary.LittleEndian.AppendUint32(b, e.Page)
		pages := e.Pages << 1
		if e.Written {
			pages |= 1
		}
		b = binary.LittleEndian.AppendUint32(b, pages)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (ws *WorkingSet) UnmarshalBinary(b []byte) error {
	n := len(b) - len(workingSetMagic) - 4
	if n < 0 || n%extentSize != 0 || string(b[:len(workingSetMagic)]) != workingSetMagic {
		return errors.New("working set: not one, or of another version")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return errors.New("working set: damaged: its checksum differs")
	}
	out := make(WorkingSet, 0, n/extentSize)
	for b := body[len(workingSetMagic):]; len(b) > 0; b = b[extentSize:] {
		pages := binary.LittleEndian.Uint32(b[4:])
		out = append(out, Extent{Page: binary.LittleEndian.Uint32(b), Pages: pages >> 1, Written: pages&1 != 0})
	}
	*ws = out
	return nil
}

// Prefault prepares a working set between Restore and Start: pages that will be written are copied, the others mapped,
// and all of them entered into the second level of address translation where the kernel can (Linux 6.11). Each page is
// an exit of the guest saved. It changes no memory; a wrong set costs time alone.
func (m *Machine) Prefault(ws WorkingSet) error {
	pages := uint64(len(m.mem.ram) / pageSize)
	for _, e := range ws {
		if uint64(e.Page)+uint64(e.Pages) > pages {
			return fmt.Errorf("prefault: pages %d+%d are outside RAM of %d pages", e.Page, e.Pages, pages)
		}
		if err := m.mem.populate(e); err != nil {
			return fmt.Errorf("prefault: %w", err)
		}
	}
	if ok, err := m.sys.Check(kvm.CapPreFaultMemory); err != nil || ok == 0 {
		return err
	}
	for len(ws) > 0 {
		run := ws[0]
		ws = ws[1:]
		for len(ws) > 0 && ws[0].Page == run.Page+run.Pages && !m.mem.crossesGap(ws[0].Page) {
			run.Pages += ws[0].Pages
			ws = ws[1:]
		}
		err := m.vcpus[0].kvm.PreFault(m.mem.guestAddr(run.Page), uint64(run.Pages)*pageSize)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // shadow paging
		}
		if err != nil {
			return fmt.Errorf("prefault: %w", err)
		}
	}
	return nil
}

func (m *memory) populate(e Extent) error {
	advice := unix.MADV_POPULATE_READ
	if e.Written {
		advice = unix.MADV_POPULATE_WRITE
	}
	from := int(e.Page) * pageSize
	return unix.Madvise(m.ram[from:from+int(e.Pages)*pageSize], advice)
}

// crossesGap reports whether a page is the first above the gap below 4 GiB.
func (m *memory) crossesGap(page uint32) bool { return int(page)*pageSize == m.low }

func (m *memory) guestAddr(page uint32) uint64 {
	addr := uint64(page) * pageSize
	if addr >= uint64(m.low) {
		addr += boot.HighRAMStart - uint64(m.low)
	}
	return addr
}

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageOfFile  = 1 << 61
)

// Touched returns the pages that the guest has touched since the machine was restored with private memory, according to
// this process's /proc/self/pagemap. They are exact only if Record was called before Start.
func (m *Machine) Touched(pagemap io.ReaderAt) (WorkingSet, error) {
	entries := make([]byte, len(m.mem.ram)/pageSize*8)
	if _, err := pagemap.ReadAt(entries, int64(m.mem.address()/pageSize*8)); err != nil {
		return nil, fmt.Errorf("read touched pages: %w", err)
	}
	var ws WorkingSet
	for page := range uint32(len(entries) / 8) {
		entry := binary.LittleEndian.Uint64(entries[page*8:])
		if entry&pagePresent == 0 {
			continue
		}
		written := entry&pageOfFile == 0
		if n := len(ws); n > 0 && ws[n-1].Written == written && ws[n-1].Page+ws[n-1].Pages == page && !m.mem.crossesGap(page) {
			ws[n-1].Pages++
			continue
		}
		ws = append(ws, Extent{Page: page, Pages: 1, Written: written})
	}
	return ws, nil
}
