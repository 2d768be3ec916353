package boot

import (
	"encoding/binary"
	"fmt"

	"cella.dev/cella/vmm/virtio"
)

// ELF-64 constants (System V ABI, chapters 4 and 5).
const (
	elfHeaderLen  = 64
	elfProgLen    = 56
	elfClass64    = 2
	elfLittle     = 1
	elfExec       = 2
	elfDyn        = 3
	elfMachineX86 = 62
	progLoad      = 1
	// maxSegments is far above the five or so of a Linux kernel.
	maxSegments = 64
)

// FieldError says which field of the kernel's ELF file is wrong.
type FieldError struct {
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("ELF field %s: %s", e.Field, e.Reason) }

func fieldError(field, format string, a ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, a...)}
}

type segment struct {
	offset, paddr, filesz, memsz uint64
}

// loadELF reads the loadable segments to their physical addresses, which must lie in [1 MiB, lowEnd). It
// returns the entry point and the end of the highest segment. Memory that a segment leaves out (its bss) is
// not written: RAM is zero at boot.
func loadELF(mem virtio.Memory, src Source, lowEnd uint64) (entry, end uint64, err error) {
	entry, segments, err := readELF(src, lowEnd)
	if err != nil {
		return 0, 0, err
	}
	for i, s := range segments {
		if err := readInto(mem, s.paddr, src, int64(s.offset), s.filesz); err != nil {
			return 0, 0, fmt.Errorf("segment %d: %w", i, err)
		}
		end = max(end, s.paddr+s.memsz)
	}
	return entry, end, nil
}

// readELF checks the headers against the file's size and the room in memory.
func readELF(src Source, lowEnd uint64) (entry uint64, segments []segment, err error) {
	var h [elfHeaderLen]byte
	if n, err := src.ReadAt(h[:], 0); n < len(h) {
		return 0, nil, fieldError("header", "the file has %d bytes, fewer than an ELF header: %v", src.Size(), err)
	}
	phoff, phnum, err := checkELFHeader(h[:])
	if err != nil {
		return 0, nil, err
	}
	size := uint64(max(src.Size(), 0))
	if phoff > size || uint64(phnum)*elfProgLen > size-phoff {
		return 0, nil, fieldError("e_phoff", "%d program headers at %#x end beyond the file's %d bytes", phnum, phoff, size)
	}
	table := make([]byte, phnum*elfProgLen)
	if n, err := src.ReadAt(table, int64(phoff)); n < len(table) {
		return 0, nil, fmt.Errorf("read program headers: %w", err)
	}
	for i := range phnum {
		p := table[i*elfProgLen:][:elfProgLen]
		if binary.LittleEndian.Uint32(p) != progLoad {
			continue
		}
		s, err := checkSegment(i, p, size, lowEnd)
		if err != nil {
			return 0, nil, err
		}
		segments = append(segments, s)
	}
	entry = binary.LittleEndian.Uint64(h[24:])
	for _, s := range segments {
		if entry >= s.paddr && entry-s.paddr < s.filesz {
			return entry, segments, nil
		}
	}
	return 0, nil, fieldError("e_entry", "%#x is in no loadable segment", entry)
}

func checkELFHeader(h []byte) (phoff uint64, phnum int, err error) {
	le := binary.LittleEndian
	switch {
	case string(h[:4]) != "\x7fELF":
		return 0, 0, fieldError("e_ident", "starts with % x, not with an ELF file's magic: a bzImage must be unpacked first", h[:4])
	case h[4] != elfClass64:
		return 0, 0, fieldError("EI_CLASS", "is %d, want %d (64-bit)", h[4], elfClass64)
	case h[5] != elfLittle:
		return 0, 0, fieldError("EI_DATA", "is %d, want %d (little-endian)", h[5], elfLittle)
	}
	if t := le.Uint16(h[16:]); t != elfExec && t != elfDyn {
		return 0, 0, fieldError("e_type", "is %d, want %d (executable) or %d (shared)", t, elfExec, elfDyn)
	}
	if m := le.Uint16(h[18:]); m != elfMachineX86 {
		return 0, 0, fieldError("e_machine", "is %d, want %d (x86-64)", m, elfMachineX86)
	}
	if n := le.Uint16(h[54:]); n != elfProgLen {
		return 0, 0, fieldError("e_phentsize", "is %d, want %d", n, elfProgLen)
	}
	phnum = int(le.Uint16(h[56:]))
	if phnum == 0 || phnum > maxSegments {
		return 0, 0, fieldError("e_phnum", "is %d, want 1 to %d", phnum, maxSegments)
	}
	return le.Uint64(h[32:]), phnum, nil
}

// checkSegment checks one PT_LOAD program header. All comparisons are written so that no sum can overflow.
func checkSegment(i int, p []byte, fileSize, lowEnd uint64) (segment, error) {
	le := binary.LittleEndian
	s := segment{offset: le.Uint64(p[8:]), paddr: le.Uint64(p[24:]), filesz: le.Uint64(p[32:]), memsz: le.Uint64(p[40:])}
	field := func(name string) string { return fmt.Sprintf("p_%s of segment %d", name, i) }
	switch {
	case s.offset > fileSize || s.filesz > fileSize-s.offset:
		return s, fieldError(field("filesz"), "%#x bytes at %#x end beyond the file's %#x bytes", s.filesz, s.offset, fileSize)
	case s.memsz < s.filesz:
		return s, fieldError(field("memsz"), "%#x is less than p_filesz %#x", s.memsz, s.filesz)
	case s.paddr < highMemAddr:
		return s, fieldError(field("paddr"), "%#x is below 1 MiB, which the loader keeps", s.paddr)
	case s.paddr > lowEnd || s.memsz > lowEnd-s.paddr:
		return s, fieldError(field("memsz"), "%#x bytes at %#x end beyond low memory %#x: give the machine more memory", s.memsz, s.paddr, lowEnd)
	}
	return s, nil
}
