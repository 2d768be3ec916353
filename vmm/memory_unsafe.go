package vmm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/boot"
	"cella.dev/cella/vmm/kvm"
)

// hugePage is how RAM is aligned in host memory, so that the host may back it with huge pages.
const hugePage = 2 << 20

// memory is guest RAM: one range of host addresses, reserved when the machine is made and mapped when its
// content is known. The memory slots name the range, so mapping it changes no slot.
type memory struct {
	reserve []byte // the whole reservation
	ram     []byte // the aligned part of it that is RAM
	low     int    // bytes of ram below boot.LowRAMEnd
	mapped  bool
}

func reserveMemory(size uint64) (*memory, error) {
	b, err := unix.Mmap(-1, 0, int(size)+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space for RAM: %w", size, err)
	}
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (hugePage - 1)
	return &memory{reserve: b, ram: b[skip : skip+int(size) : skip+int(size)], low: int(boot.LowBytes(size))}, nil
}

// register makes the reservation guest memory: one slot below the gap, one above 4 GiB if there is more.
func (m *memory) register(vm *kvm.VM) error {
	addrs := []uint64{0, boot.HighRAMStart}
	for slot, r := range m.regions() {
		err := vm.SetMemoryRegion(kvm.MemoryRegion{
			Slot: uint32(slot), GuestPhysAddr: addrs[slot], Size: uint64(len(r)),
			UserspaceAddr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r)))),
		})
		if err != nil {
			return fmt.Errorf("memory slot %d: %w", slot, err)
		}
	}
	return nil
}

// mapFile replaces the reservation by memory. Writes to a private mapping of a file stay in the machine.
func (m *memory) mapFile(fd int, private bool) error {
	flags := unix.MAP_FIXED | unix.MAP_NORESERVE
	switch {
	case fd < 0:
		flags |= unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
		fd = -1
	case private:
		flags |= unix.MAP_PRIVATE
	default:
		flags |= unix.MAP_SHARED
	}
	base := unsafe.Pointer(unsafe.SliceData(m.ram))
	if _, err := unix.MmapPtr(fd, 0, base, uintptr(len(m.ram)), unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		return fmt.Errorf("map %d bytes of RAM: %w", len(m.ram), err)
	}
	m.mapped = true
	return nil
}

func (m *memory) regions() [][]byte {
	if m.low == len(m.ram) {
		return [][]byte{m.ram}
	}
	return [][]byte{m.ram[:m.low:m.low], m.ram[m.low:]}
}

// Bytes is the guest-physical range [addr, addr+n) as host memory.
func (m *memory) Bytes(addr uint64, n uint32) ([]byte, error) {
	r, base := m.ram[:m.low], uint64(0)
	if addr >= boot.HighRAMStart {
		r, base = m.ram[m.low:], boot.HighRAMStart
	}
	off := addr - base
	if !m.mapped || off > uint64(len(r)) || uint64(n) > uint64(len(r))-off {
		return nil, fmt.Errorf("guest memory [%#x, +%#x) is not RAM", addr, n)
	}
	return r[off : off+uint64(n) : off+uint64(n)], nil
}

func (m *memory) close() error {
	m.mapped = false
	if err := unix.Munmap(m.reserve); err != nil {
		return fmt.Errorf("unmap RAM: %w", err)
	}
	return nil
}
