package boot

import (
	"encoding/binary"
	"fmt"
	"slices"

	"cella.dev/cella/vmm/chipset"
	"cella.dev/cella/vmm/virtio"
)

const (
	acpiHeaderLen = 36
	rsdpLen       = 36
	fadtLen       = 276
	tableAlign    = 16
)

// Flags of the FADT (ACPI 6.5 §5.2.9).
const (
	fadtWBINVD        = 1 << 0
	fadtNoPowerButton = 1 << 4
	fadtNoSleepButton = 1 << 5
	fadtResetRegister = 1 << 10
	fadtHWReduced     = 1 << 20

	// Boot architecture flags: no VGA, no CMOS clock; the bits for legacy devices and for a keyboard
	// controller stay clear, which spares the guest half a second of probing for one.
	bootArchNoVGA = 1 << 2
	bootArchNoRTC = 1 << 5
)

// writeACPI writes the tables: RSDP → XSDT → FADT → DSDT, and MADT.
func writeACPI(mem virtio.Memory, p Platform) error {
	area, err := mem.Bytes(acpiAddr, acpiEnd-acpiAddr)
	if err != nil {
		return err
	}
	next := rsdpLen
	place := func(table []byte) (uint64, error) {
		at := (next + tableAlign - 1) &^ (tableAlign - 1)
		if len(table) > len(area)-at {
			return 0, fmt.Errorf("table %s does not fit: %d bytes, %d are left", table[:4], len(table), len(area)-at)
		}
		next = at + copy(area[at:], table)
		return acpiAddr + uint64(at), nil
	}
	dsdtAt, err := place(dsdt(p))
	if err != nil {
		return err
	}
	fadtAt, err := place(fadt(dsdtAt))
	if err != nil {
		return err
	}
	madtAt, err := place(madt(p.VCPUs))
	if err != nil {
		return err
	}
	xsdtAt, err := place(xsdt(fadtAt, madtAt))
	if err != nil {
		return err
	}
	copy(area, rsdp(xsdtAt))
	return nil
}

// table completes a system description table: header, body, checksum.
func table(signature string, revision byte, body []byte) []byte {
	t := make([]byte, acpiHeaderLen, acpiHeaderLen+len(body))
	copy(t, signature)
	binary.LittleEndian.PutUint32(t[4:], uint32(acpiHeaderLen+len(body)))
	t[8] = revision
	copy(t[10:], "CELLA ")
	copy(t[16:], "CELLABRD")
	binary.LittleEndian.PutUint32(t[24:], 1)
	copy(t[28:], "CELA")
	binary.LittleEndian.PutUint32(t[32:], 1)
	t = append(t, body...)
	t[9] = checksum(t)
	return t
}

// checksum is the byte that makes the sum of b zero.
func checksum(b []byte) byte {
	var sum byte
	for _, v := range b {
		sum += v
	}
	return -sum
}

// rsdp points to the XSDT (§5.2.5.3). It has two checksums: of the 20 bytes of ACPI 1.0, and of all.
func rsdp(xsdt uint64) []byte {
	b := make([]byte, rsdpLen)
	copy(b, "RSD PTR ")
	copy(b[9:], "CELLA ")
	b[15] = 2
	binary.LittleEndian.PutUint32(b[20:], rsdpLen)
	binary.LittleEndian.PutUint64(b[24:], xsdt)
	b[8] = checksum(b[:20])
	b[32] = checksum(b)
	return b
}

func xsdt(tables ...uint64) []byte {
	var body []byte
	for _, t := range tables {
		body = binary.LittleEndian.AppendUint64(body, t)
	}
	return table("XSDT", 1, body)
}

// fadt describes a hardware-reduced machine: no ACPI timer, no PM registers, only sleep and reset.
func fadt(dsdt uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, fadtLen)
	le.PutUint16(b[109:], bootArchNoVGA|bootArchNoRTC)
	le.PutUint32(b[112:], fadtWBINVD|fadtNoPowerButton|fadtNoSleepButton|fadtResetRegister|fadtHWReduced)
	copy(b[116:], systemIO(chipset.ResetPort))
	b[128] = chipset.ResetValue
	b[131] = 5 // minor version of ACPI 6.5
	le.PutUint64(b[140:], dsdt)
	copy(b[244:], systemIO(chipset.SleepControlPort))
	copy(b[256:], systemIO(chipset.SleepStatusPort))
	copy(b[268:], "CELLA   ")
	return table("FACP", 6, b[acpiHeaderLen:])
}

// systemIO is the generic address of a byte-wide port (§5.2.3.2).
func systemIO(port uint16) []byte {
	const spaceIO, width, offset, byteAccess = 1, 8, 0, 1
	return binary.LittleEndian.AppendUint64([]byte{spaceIO, width, offset, byteAccess}, uint64(port))
}

// madt lists the local APICs, whose ids are the vCPUs' numbers, and the IOAPIC (§5.2.12).
func madt(vcpus int) []byte {
	const typeLAPIC, typeIOAPIC, enabled = 0, 1, 1
	le := binary.LittleEndian
	body := le.AppendUint32(nil, chipset.LAPICBase)
	body = le.AppendUint32(body, 0) // no 8259 beside the APICs
	for i := range vcpus {
		body = append(body, typeLAPIC, 8, byte(i), byte(i))
		body = le.AppendUint32(body, enabled)
	}
	body = append(body, typeIOAPIC, 12, 0, 0)
	body = le.AppendUint32(body, chipset.IOAPICBase)
	body = le.AppendUint32(body, 0) // its first pin is GSI 0
	return table("APIC", 5, body)
}

// dsdt names the devices that Linux must be told of: virtio-mmio windows, the serial port, and how to
// power off.
func dsdt(p Platform) []byte {
	var devices [][]byte
	if p.Serial {
		devices = append(devices, device("COM1",
			named("_HID", eisaID("PNP0501")),
			named("_UID", amlInt(0)),
			named("_CRS", resources(ioPorts(chipset.SerialPort, chipset.SerialPorts), edgeInterrupt(chipset.SerialGSI))),
		))
	}
	for i, w := range p.Virtio {
		devices = append(devices, device(fmt.Sprintf("VR%02X", i),
			named("_HID", amlText("LNRO0005")),
			named("_UID", amlInt(uint32(i))),
			named("_CCA", amlInt(1)),
			named("_CRS", resources(memory32Fixed(w.Base, w.Size), edgeInterrupt(w.GSI))),
		))
	}
	off := named("_S5_", pkg(amlInt(chipset.SleepTypeOff), amlInt(0)))
	return table("DSDT", 2, slices.Concat(off, scope("\\_SB_", devices...)))
}

// eisaID packs an id such as PNP0501 into an integer: three letters of 5 bits, four hexadecimal digits,
// most significant byte first (§19.3.4).
func eisaID(id string) []byte {
	var v uint32
	for _, c := range id[:3] {
		v = v<<5 | uint32(c-'@')
	}
	for _, c := range id[3:] {
		d := uint32(c - '0')
		if c >= 'A' {
			d = uint32(c - 'A' + 10)
		}
		v = v<<4 | d
	}
	return binary.BigEndian.AppendUint32([]byte{amlDWord}, v)
}
