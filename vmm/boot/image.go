package boot

import (
	"fmt"
	"io"
	"os"

	"cella.dev/cella/vmm/virtio"
)

// Source is a file's content with its size, such as an *io.SectionReader or a *bytes.Reader.
type Source interface {
	io.ReaderAt
	Size() int64
}

// FileSource is the content of an open file. The file must stay open until it is loaded.
func FileSource(f *os.File) (Source, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("size of boot file: %w", err)
	}
	return io.NewSectionReader(f, 0, info.Size()), nil
}

// Image is what a machine boots.
type Image struct {
	// Kernel is an uncompressed 64-bit ELF kernel (vmlinux); ExtractELF gets one out of a bzImage.
	Kernel Source
	// Initrd is the initial RAM disk, or nil.
	Initrd Source
	// Cmdline is the kernel's command line, at most 2047 bytes.
	Cmdline string
}

// Platform is the board, as the memory map and the ACPI tables describe it.
type Platform struct {
	MemoryBytes uint64
	VCPUs       int
	Serial      bool
	// Virtio lists the virtio-mmio devices in order.
	Virtio []VirtioWindow
}

// VirtioWindow is where a virtio-mmio device is.
type VirtioWindow struct {
	Base uint32
	Size uint32
	GSI  uint32
}

// Load writes all that the image needs into mem, which must be zero, and returns the address of the kernel's
// 64-bit entry point. Errors name the part and the field that is wrong.
func Load(mem virtio.Memory, img Image, p Platform) (entry uint64, err error) {
	if img.Kernel == nil {
		return 0, fmt.Errorf("boot image: no kernel")
	}
	entry, kernelEnd, err := loadELF(mem, img.Kernel, LowBytes(p.MemoryBytes))
	if err != nil {
		return 0, fmt.Errorf("kernel: %w", err)
	}
	rd, err := loadInitrd(mem, img.Initrd, kernelEnd, LowBytes(p.MemoryBytes))
	if err != nil {
		return 0, fmt.Errorf("initrd: %w", err)
	}
	if err := writeCmdline(mem, img.Cmdline); err != nil {
		return 0, fmt.Errorf("command line: %w", err)
	}
	if err := writeACPI(mem, p); err != nil {
		return 0, fmt.Errorf("ACPI tables: %w", err)
	}
	if err := writeBootParams(mem, p.MemoryBytes, rd, len(img.Cmdline)); err != nil {
		return 0, fmt.Errorf("boot parameters: %w", err)
	}
	if err := writeLongMode(mem); err != nil {
		return 0, fmt.Errorf("page tables: %w", err)
	}
	return entry, nil
}

// extent is a range of guest-physical memory.
type extent struct {
	addr uint64
	size uint64
}

// loadInitrd puts the RAM disk at the end of low RAM, where the kernel that grows from below does not meet it.
func loadInitrd(mem virtio.Memory, src Source, kernelEnd, lowEnd uint64) (extent, error) {
	if src == nil || src.Size() == 0 {
		return extent{}, nil
	}
	size := uint64(src.Size())
	if lowEnd < kernelEnd || size > lowEnd-kernelEnd {
		return extent{}, fmt.Errorf("%d bytes do not fit between the kernel's end %#x and the end of low memory %#x: give the machine more memory", size, kernelEnd, lowEnd)
	}
	addr := (lowEnd - size) &^ (pageSize - 1)
	if addr < kernelEnd {
		return extent{}, fmt.Errorf("%d bytes do not fit above the kernel's end %#x: give the machine more memory", size, kernelEnd)
	}
	return extent{addr, size}, readInto(mem, addr, src, 0, size)
}

func writeCmdline(mem virtio.Memory, s string) error {
	if len(s) >= maxCmdline {
		return fmt.Errorf("%d bytes, at most %d fit", len(s), maxCmdline-1)
	}
	b, err := mem.Bytes(cmdlineAddr, uint32(len(s)+1))
	if err != nil {
		return err
	}
	copy(b, s)
	b[len(s)] = 0
	return nil
}

// readInto reads size bytes at offset of src straight into guest memory.
func readInto(mem virtio.Memory, addr uint64, src io.ReaderAt, offset int64, size uint64) error {
	const chunk = 1 << 30 // Memory's lengths are 32 bits
	for size > 0 {
		n := min(size, chunk)
		b, err := mem.Bytes(addr, uint32(n))
		if err != nil {
			return err
		}
		if got, err := src.ReadAt(b, offset); got < len(b) {
			return fmt.Errorf("read %d bytes at offset %d: %w", n, offset, err)
		}
		addr, offset, size = addr+n, offset+int64(n), size-n
	}
	return nil
}
