package vmm

import (
	"errors"
	"fmt"
	"slices"

	"cella.dev/cella/vmm/boot"
	"cella.dev/cella/vmm/kvm"
)

const (
	miscEnableFastString = 1
	mtrrEnable           = 1 << 11
	mtrrWriteBack        = 6
)

// Load puts a kernel into the machine's memory, which must be mapped and zero, and prepares the first vCPU
// to enter it. The others wait for the kernel to start them.
func (m *Machine) Load(img boot.Image) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect("load", phaseNew); err != nil {
		return err
	}
	entry, err := boot.Load(m.mem, img, m.platform())
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	for _, c := range m.vcpus {
		if err := errors.Join(c.bootMSRs(), c.bootXCRs()); err != nil {
			return fmt.Errorf("load: vCPU %d: %w", c.id, err)
		}
	}
	if err := m.vcpus[0].enterKernel(entry); err != nil {
		return fmt.Errorf("load: vCPU 0: %w", err)
	}
	m.phase = phaseLoaded
	return nil
}

func (m *Machine) platform() boot.Platform {
	p := boot.Platform{MemoryBytes: m.shape.MemoryBytes, VCPUs: m.shape.VCPUs, Serial: m.bus.serial != nil}
	for i := range m.devices {
		p.Virtio = append(p.Virtio, boot.VirtioWindow{Base: windowBase(i), Size: virtioSize, GSI: windowGSI(i)})
	}
	return p
}

// bootMSRs sets what firmware would: fast string instructions, and write-back as the default memory type.
func (c *vcpu) bootMSRs() error {
	return c.kvm.SetMSRs([]kvm.MSREntry{
		{Index: msrMiscEnable, Data: miscEnableFastString},
		{Index: msrMTRRDefault, Data: mtrrEnable | mtrrWriteBack},
	})
}

// leafXSave is the CPUID leaf whose subleaf 0 has the XCR0 bits the CPU knows in EAX and EDX.
const leafXSave = 0xd

// bootXCRs enables every extended state the CPU has. Linux does the same first thing; some nested
// hypervisors do not see it do so, and would then lose vector registers of a guest whose XCR0 they think is 1.
func (c *vcpu) bootXCRs() error {
	i := slices.IndexFunc(c.cpuid, func(e kvm.CPUIDEntry) bool { return e.Function == leafXSave && e.Index == 0 })
	if i < 0 {
		return nil
	}
	x, err := c.kvm.XCRs()
	if err != nil {
		return err
	}
	if x.Count > 0 {
		x.XCR[0].Value = uint64(c.cpuid[i].EDX)<<32 | uint64(c.cpuid[i].EAX)
	}
	return c.kvm.SetXCRs(&x)
}

func (c *vcpu) enterKernel(entry uint64) error {
	s, err := c.kvm.Sregs()
	if err != nil {
		return err
	}
	var r kvm.Regs
	boot.EnterLongMode(&r, &s, entry)
	if err := c.kvm.SetSregs(&s); err != nil {
		return err
	}
	return c.kvm.SetRegs(&r)
}

// LoadCode starts something other than a Linux kernel: the caller has put code into RAM, and setup sets the
// first vCPU's registers to enter it. The other vCPUs wait for an INIT.
func (m *Machine) LoadCode(setup func(*kvm.VCPU) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.expect("load", phaseNew); err != nil {
		return err
	}
	if err := setup(m.vcpus[0].kvm); err != nil {
		return fmt.Errorf("load: vCPU 0: %w", err)
	}
	m.phase = phaseLoaded
	return nil
}
