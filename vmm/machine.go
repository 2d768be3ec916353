package vmm

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"cella.dev/cella/vmm/chipset"
	"cella.dev/cella/vmm/kvm"
)

// Addresses above the RAM below 4 GiB. Devices come first, then the pages that VMX wants for itself.
const (
	virtioBase      = 0xd0000000
	virtioSize      = 0x1000
	identityMapAddr = 0xfffbc000
	tssAddr         = 0xfffbd000
)

const (
	pageSize       = 4096
	minMemoryBytes = 2 << 20
	maxMemoryBytes = 1 << 40
	// maxVCPUs keeps APIC ids within the IOAPIC's 8-bit destinations.
	maxVCPUs = 64
)

// Shape is what a machine's size is; it cannot be changed later.
type Shape struct {
	VCPUs int
	// MemoryBytes is a multiple of 4096, at least 2 MiB.
	MemoryBytes uint64
}

func (s Shape) check() error {
	if s.VCPUs < 1 || s.VCPUs > maxVCPUs {
		return fmt.Errorf("machine shape: %d vCPUs, want 1 to %d", s.VCPUs, maxVCPUs)
	}
	if s.MemoryBytes < minMemoryBytes || s.MemoryBytes > maxMemoryBytes || s.MemoryBytes%pageSize != 0 {
		return fmt.Errorf("machine shape: %d bytes of memory, want a multiple of %d from %d to %d", s.MemoryBytes, pageSize, minMemoryBytes, uint64(maxMemoryBytes))
	}
	return nil
}

// phase is how far a machine is in its life.
type phase int

const (
	phaseNew     phase = iota // no guest yet
	phaseLoaded               // Load or Restore done
	phaseRunning              // vCPUs are in the guest
	phasePaused               // vCPUs and devices stand still
	phaseClosed
)

// Machine is one virtual machine. A machine without a guest costs little and can wait in a pool; its life
// then is
//
//	New ─ MapMemory ─ AddDevice… ─┬─ Load ────┬─ Start ─ Pause ─ Save ─ Resume … Done ─ Close
//	                              └─ Restore ─┘
//
// Methods may be called from any goroutine, but not two at a time, except Done, Exit and Close.
type Machine struct {
	shape   Shape
	sys     *kvm.System
	vm      *kvm.VM
	mem     *memory
	vcpus   []*vcpu
	ioapic  *chipset.IOAPIC
	bus     bus
	kicks   *notifier
	devices []*attached
	msrs    []uint32
	// tscKHz is the rate of the guest's TSC.
	tscKHz uint32
	// restored: the guest came from a saved state and must be told that time has passed.
	restored bool

	mu    sync.Mutex // guards what follows
	idle  *sync.Cond // running has fallen to 0
	phase phase
	// running counts the vCPUs that have not parked.
	running int
	exit    *Exit
	done    chan struct{}
}

// New makes a machine of a shape: everything that can be done before it is known which guest it will run.
func New(shape Shape) (*Machine, error) {
	if err := shape.check(); err != nil {
		return nil, err
	}
	m := &Machine{shape: shape, done: make(chan struct{})}
	m.idle = sync.NewCond(&m.mu)
	if err := m.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("new machine: %w", err), m.Close())
	}
	return m, nil
}

func (m *Machine) build() (err error) {
	if m.sys, err = kvm.Open(); err != nil {
		return err
	}
	if m.msrs, err = savedMSRs(m.sys); err != nil {
		return err
	}
	if m.vm, err = m.sys.CreateVM(); err != nil {
		return err
	}
	// All three must come before the first vCPU.
	if err := m.vm.SetTSSAddr(tssAddr); err != nil {
		return err
	}
	if err := m.vm.SetIdentityMapAddr(identityMapAddr); err != nil {
		return err
	}
	if err := m.vm.EnableSplitIRQChip(chipset.IOAPICPins); err != nil {
		return err
	}
	m.ioapic = chipset.NewIOAPIC(m.deliver)
	m.bus.ioapic = m.ioapic
	if m.kicks, err = newNotifier(); err != nil {
		return err
	}
	if err := m.buildVCPUs(); err != nil {
		return err
	}
	// Memory slots come last: their SRCU wait is shorter when nothing has to be torn down for them.
	if m.mem, err = reserveMemory(m.shape.MemoryBytes); err != nil {
		return err
	}
	return m.mem.register(m.vm)
}

func (m *Machine) buildVCPUs() error {
	supported, err := m.sys.SupportedCPUID()
	if err != nil {
		return err
	}
	for id := range m.shape.VCPUs {
		k, err := m.vm.CreateVCPU(id)
		if err != nil {
			return err
		}
		c := &vcpu{id: id, kvm: k, m: m, cpuid: guestCPUID(supported, id, m.shape.VCPUs)}
		m.vcpus = append(m.vcpus, c)
		if err := k.SetCPUID(c.cpuid); err != nil {
			return err
		}
		if err := c.startThread(); err != nil {
			return fmt.Errorf("vCPU %d: %w", id, err)
		}
	}
	khz, err := m.vcpus[0].kvm.TSCKHz()
	m.tscKHz = uint32(khz)
	return err
}

// deliver puts an interrupt message of the IOAPIC to the local APICs. This is one system call and needs no
// route in the kernel, so restoring a machine changes no routing table.
func (m *Machine) deliver(msg chipset.Message) error {
	_, err := m.vm.SignalMSI(kvm.MSI{AddressLow: msg.Address, Data: msg.Data})
	return err
}

// MapMemory maps the machine's RAM: a file whose offsets are RAM's, shared or private (copy on write), or
// anonymous memory if fd is negative. The file may be closed afterwards.
func (m *Machine) MapMemory(fd int, private bool) error { return m.mem.mapFile(fd, private) }

// RAM is guest memory by region, in the order of the offsets of MapMemory's file. The guest changes it while
// the machine is not paused.
func (m *Machine) RAM() [][]byte { return m.mem.regions() }

// SetConsole gives the machine a serial port whose output goes to w. It must be called before Load, and
// before Restore of a machine that was saved with one; without it the guest has no serial port.
func (m *Machine) SetConsole(w io.Writer) {
	if w == nil {
		m.bus.serial = nil
		return
	}
	m.bus.serial = chipset.NewSerial(w, func() { _ = m.ioapic.Assert(chipset.SerialGSI) })
}

// Close stops the machine and frees all it holds. Further calls do nothing.
func (m *Machine) Close() error {
	m.finish(Exit{Reason: Stopped, Detail: "closed"})
	m.mu.Lock()
	if m.phase == phaseClosed {
		m.mu.Unlock()
		return nil
	}
	m.phase = phaseClosed
	m.mu.Unlock()
	m.awaitParked()
	var errs []error
	for _, c := range m.vcpus {
		errs = append(errs, c.endThread(), c.kvm.Close())
	}
	if m.kicks != nil {
		errs = append(errs, m.kicks.close())
	}
	for _, d := range m.devices {
		errs = append(errs, d.close())
	}
	if m.vm != nil {
		errs = append(errs, m.vm.Close())
	}
	if m.mem != nil {
		errs = append(errs, m.mem.close())
	}
	if m.sys != nil {
		errs = append(errs, m.sys.Close())
	}
	m.bus.flush()
	return errors.Join(errs...)
}
