// Package chipset has the few board devices a Linux guest cannot do without on a machine that has no PCI and
// no legacy interrupt controller: a serial port for the console, the registers that reset the machine and
// power it off, and an IOAPIC in user space. They are pure state machines: they take a bus access and return
// what happened, and know nothing of KVM.
//
//	port 0x3f8      16550A serial port, output only      IRQ 4
//	port 0x64       keyboard controller: reset only
//	port 0x600-602  ACPI sleep control, sleep status, reset
//	0xfec00000      IOAPIC, 24 pins
package chipset

// Where the board's devices are. The ACPI tables of vmm/boot tell the guest the same.
const (
	SerialPort  = 0x3f8
	SerialPorts = 8
	SerialGSI   = 4

	KeyboardPort = 0x64

	SleepControlPort = 0x600
	SleepStatusPort  = 0x601
	ResetPort        = 0x602
	// ResetValue is what the guest writes to ResetPort.
	ResetValue = 1
	// SleepTypeOff is \_S5's sleep type: power off.
	SleepTypeOff = 5

	IOAPICBase = 0xfec00000
	IOAPICSize = 0x1000
	IOAPICPins = 24
	LAPICBase  = 0xfee00000
)
