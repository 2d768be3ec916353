package chipset

// Event is what a write to a power register asks for.
type Event int

// The events.
const (
	NoEvent Event = iota
	PowerOff
	Reset
)

const (
	sleepEnable    = 1 << 5
	sleepTypeShift = 2
	sleepTypeMask  = 7
	// keyboardReset is the keyboard controller's command that pulses the CPU's reset line.
	keyboardReset = 0xfe
)

// WritePower handles a byte written to one of the power registers: the keyboard controller's reset command
// (reboot=k), and the sleep control and reset registers of a hardware-reduced ACPI machine (ACPI 6.5
// §4.8.3.7). They keep no state.
func WritePower(port uint16, v byte) Event {
	switch {
	case port == KeyboardPort && v == keyboardReset:
		return Reset
	case port == ResetPort && v == ResetValue:
		return Reset
	case port == SleepControlPort && v&sleepEnable != 0 && v>>sleepTypeShift&sleepTypeMask == SleepTypeOff:
		return PowerOff
	}
	return NoEvent
}

// ReadPower reads one of the power registers: the keyboard controller has room for a command and no data,
// and the machine never woke up from sleep.
func ReadPower(uint16) byte { return 0 }
