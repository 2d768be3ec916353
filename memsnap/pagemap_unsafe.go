package memsnap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Run is a stretch of pages, by their numbers in RAM.
type Run struct {
	First, Pages int64
}

// The PAGEMAP_SCAN ioctl of Linux 6.7 (Documentation/admin-guide/mm/pagemap.rst, linux/fs.h).
const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)

	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
)

// scanArg is struct pm_scan_arg.
type scanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, returned                         uint64
}

// pageRegion is struct page_region.
type pageRegion struct {
	start, end, categories uint64
}

// PrivatePages finds the pages of a private mapping that belong to it alone: those that were written since it
// was mapped. RAM is given as consecutive regions. It looks at page tables only, not at memory.
func PrivatePages(ram [][]byte) ([]Run, error) {
	return privatePages(ram, scanRegion, readPagemap)
}

// privatePages asks each way in turn, the next where the kernel does not know the one before.
func privatePages(ram [][]byte, ways ...func(*os.File, []byte, *runs) error) ([]Run, error) {
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fmt.Errorf("find private pages: %w", err)
	}
	defer pagemap.Close()
	var found runs
	for _, region := range ram {
		for i, way := range ways {
			err = way(pagemap, region, &found)
			if i == len(ways)-1 || !errors.Is(err, unix.ENOTTY) {
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("find private pages: %w", err)
		}
		found.base += int64(len(region) / pageSize)
	}
	return found.list, nil
}

// runs gathers pages into runs.
type runs struct {
	base int64 // number of the first page of the region at hand
	list []Run
}

func (r *runs) add(first, pages int64) {
	first += r.base
	if n := len(r.list); n > 0 && r.list[n-1].First+r.list[n-1].Pages == first {
		r.list[n-1].Pages += pages
		return
	}
	r.list = append(r.list, Run{first, pages})
}

// scanRegion has the kernel list what is present or swapped out and does not belong to the mapped file.
func scanRegion(pagemap *os.File, region []byte, found *runs) error {
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(region))))
	// Not more than the kernel's own buffer takes: when it fills that once and then comes to the end, it reports
	// where the buffer was full as the end of the walk, and the pages behind would be found twice (seen up to 6.18).
	vec := make([]pageRegion, 512)
	// The kernel gets its address in a number, which would not follow vec if it were on a stack that moves.
	var pin runtime.Pinner
	pin.Pin(&vec[0])
	defer pin.Unpin()
	arg := scanArg{
		start: base, end: base + uint64(len(region)),
		vec: uint64(uintptr(unsafe.Pointer(&vec[0]))), vecLen: uint64(len(vec)),
		inverted: pageIsFile, mask: pageIsFile, anyOf: pageIsPresent | pageIsSwapped, returned: pageIsFile,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	for arg.start < arg.end {
		arg.walkEnd = 0
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return os.NewSyscallError("PAGEMAP_SCAN", errno)
		}
		for _, r := range vec[:n] {
			found.add(int64(r.start-base)/pageSize, int64(r.end-r.start)/pageSize)
		}
		if arg.walkEnd <= arg.start {
			return fmt.Errorf("PAGEMAP_SCAN stopped at %#x", arg.walkEnd)
		}
		arg.start = arg.walkEnd
	}
	return nil
}

// readPagemap reads one entry for each page, the only way before Linux 6.7.
func readPagemap(pagemap *os.File, region []byte, found *runs) error {
	const (
		present = 1 << 63
		swapped = 1 << 62
		file    = 1 << 61 // or shared, which private memory is not
	)
	first := int64(uintptr(unsafe.Pointer(unsafe.SliceData(region)))) / pageSize
	entries := make([]byte, 64<<10)
	for page := int64(0); page < int64(len(region)/pageSize); {
		n := min(int64(len(entries)), (int64(len(region)/pageSize)-page)*8)
		if _, err := pagemap.ReadAt(entries[:n], (first+page)*8); err != nil {
			return err
		}
		for i := int64(0); i < n; i += 8 {
			e := binary.LittleEndian.Uint64(entries[i:])
			if e&(present|swapped) != 0 && e&file == 0 {
				found.add(page, 1)
			}
			page++
		}
	}
	return nil
}
