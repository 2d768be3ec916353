package vmm

import (
	"sync"

	"cella.dev/cella/vmm/chipset"
	"cella.dev/cella/vmm/kvm"
)

// bus has the board devices.
type bus struct {
	ioapic *chipset.IOAPIC

	mu     sync.Mutex      // guards serial; taken by vCPUs
	serial *chipset.Serial // nil without a console
}

// flush writes out an unfinished line of the console.
func (b *bus) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.serial != nil {
		b.serial.Flush()
	}
}

// port serves a port access; false means that the guest has stopped for good.
func (c *vcpu) port(x kvm.IOExit) bool {
	if p := x.Port - chipset.SerialPort; p < chipset.SerialPorts && c.m.bus.serial != nil {
		c.m.bus.serialAccess(p, x)
		return true
	}
	if x.In {
		c.m.bus.portIn(x)
		return true
	}
	return c.portOut(x)
}

func (b *bus) serialAccess(offset uint16, x kvm.IOExit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := 0; i < len(x.Data); i += x.Size {
		if x.In {
			fill(x.Data[i:i+x.Size], 0xff)
			x.Data[i] = b.serial.Read(offset)
		} else {
			b.serial.Write(offset, x.Data[i])
		}
	}
}

func (b *bus) portIn(x kvm.IOExit) {
	switch x.Port {
	case chipset.KeyboardPort, chipset.SleepControlPort, chipset.SleepStatusPort, chipset.ResetPort:
		fill(x.Data, chipset.ReadPower(x.Port))
	default:
		fill(x.Data, 0xff) // nobody drives the bus
	}
}

func (c *vcpu) portOut(x kvm.IOExit) bool {
	switch chipset.WritePower(x.Port, x.Data[0]) {
	case chipset.PowerOff:
		c.m.finish(Exit{Reason: PowerOff, Detail: "the guest powered off"})
		return false
	case chipset.Reset:
		c.m.finish(Exit{Reason: Reset, Detail: "the guest asked for a reset"})
		return false
	}
	return true
}

// mmio serves an access to memory that is not RAM; false means that the guest has stopped for good.
func (c *vcpu) mmio(x kvm.MMIOExit) bool {
	switch {
	case x.Addr >= virtioBase && (x.Addr-virtioBase)/virtioSize < uint64(len(c.m.devices)):
		d := c.m.devices[(x.Addr-virtioBase)/virtioSize]
		if x.Write {
			d.transport.Write(x.Addr%virtioSize, x.Data)
		} else {
			d.transport.Read(x.Addr%virtioSize, x.Data)
		}
	case x.Addr >= chipset.IOAPICBase && x.Addr < chipset.IOAPICBase+chipset.IOAPICSize:
		if !x.Write {
			c.m.ioapic.Read(x.Addr-chipset.IOAPICBase, x.Data)
		} else if err := c.m.ioapic.Write(x.Addr-chipset.IOAPICBase, x.Data); err != nil {
			c.crash(err.Error())
			return false
		}
	case !x.Write:
		fill(x.Data, 0xff)
	}
	return true
}

func fill(p []byte, v byte) {
	for i := range p {
		p[i] = v
	}
}
