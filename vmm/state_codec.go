package vmm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"cella.dev/cella/vmm/kvm"
)

// The encoding of a State, all little-endian:
//
//	magic "CELLAVM\n", format version u32, total length u32
//	sections: kind u16, index u16, length u32, payload
//	CRC-32C u32 of everything before it
//
// Payloads are raw: kernel structs as the kernel has them. Nothing is aligned or compressed: a state is some
// ten kilobytes per vCPU and is decoded on the way of every restore.
const (
	stateMagic   = "CELLAVM\n"
	stateVersion = 1

	stateHeaderLen  = len(stateMagic) + 8
	sectionHeadLen  = 8
	stateTrailerLen = 4
	maxStateLen     = 64 << 20
)

// sectionKind says what a section holds; index is the vCPU's or the device's number.
type sectionKind uint16

const (
	sectionMachine sectionKind = iota + 1
	sectionMP
	sectionRegs
	sectionSregs
	sectionEvents
	sectionDebugRegs
	sectionXCRs
	sectionLAPIC
	sectionXSave
	sectionMSRs
	sectionCPUID
	sectionIOAPIC
	sectionSerial
	sectionDevice
)

// sectionSet has a bit for each section by kind and index. Indices end at 63: neither vCPUs nor devices are more.
type sectionSet [sectionDevice + 1]uint64

// add reports false if the section was there already. Sections that no state can have are not remembered.
func (s *sectionSet) add(kind sectionKind, index uint16) bool {
	if kind > sectionDevice || index > 63 {
		return true
	}
	was := s[kind]
	s[kind] |= 1 << index
	return s[kind] != was
}

func (s *sectionSet) has(kind sectionKind, index uint16) bool { return s[kind]>>index&1 == 1 }

var sectionNames = map[sectionKind]string{
	sectionMachine: "machine", sectionMP: "MP state", sectionRegs: "registers", sectionSregs: "special registers",
	sectionEvents: "events", sectionDebugRegs: "debug registers", sectionXCRs: "XCRs", sectionLAPIC: "LAPIC",
	sectionXSave: "XSAVE", sectionMSRs: "MSRs", sectionCPUID: "CPUID", sectionIOAPIC: "IOAPIC",
	sectionSerial: "serial port", sectionDevice: "device",
}

func (k sectionKind) String() string {
	if n, ok := sectionNames[k]; ok {
		return n
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// machineLen is the length of the machine section.
const machineLen = 8 + 12 + 4 + 4 + 4 + 8 + 4 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// StateError says which part of a saved state is wrong.
type StateError struct {
	Field  string
	Reason string
}

func (e *StateError) Error() string { return fmt.Sprintf("machine state: %s: %s", e.Field, e.Reason) }

func stateError(field, format string, a ...any) error {
	return &StateError{Field: field, Reason: fmt.Sprintf(format, a...)}
}

// MarshalBinary encodes the state.
func (s *State) MarshalBinary() ([]byte, error) {
	if len(s.VCPUs) > maxVCPUs || len(s.Devices) > maxDevices {
		return nil, stateError("machine", "%d vCPUs and %d devices", len(s.VCPUs), len(s.Devices))
	}
	le := binary.LittleEndian
	b := make([]byte, 0, 16<<10*max(1, len(s.VCPUs)))
	b = le.AppendUint32(append(b, stateMagic...), stateVersion)
	b = le.AppendUint32(b, 0) // total length, below
	b = appendSection(b, sectionMachine, 0, s.machineSection())
	for i := range s.VCPUs {
		b = s.VCPUs[i].appendTo(b, i)
	}
	b = appendSection(b, sectionIOAPIC, 0, s.IOAPIC)
	if s.Serial != nil {
		b = appendSection(b, sectionSerial, 0, s.Serial)
	}
	for i, d := range s.Devices {
		b = appendSection(b, sectionDevice, i, d)
	}
	if len(b)+stateTrailerLen > maxStateLen {
		return nil, stateError("total length", "%d bytes, at most %d are allowed", len(b), maxStateLen)
	}
	le.PutUint32(b[len(stateMagic)+4:], uint32(len(b)+stateTrailerLen))
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

func appendSection(b []byte, kind sectionKind, index int, payload []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(kind))
	b = le.AppendUint16(b, uint16(index))
	b = le.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

func (s *State) machineSection() []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(make([]byte, 0, machineLen), s.MemoryBytes)
	b = append(b, s.CPU.Vendor[:]...)
	for _, v := range []uint32{s.CPU.Family, s.CPU.Model, s.TSCKHz} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, s.ClockNanos)
	b = le.AppendUint32(b, uint32(len(s.VCPUs)))
	return le.AppendUint32(b, uint32(len(s.Devices)))
}

// fixed lists the fields of fixed size with their sections.
func (c *VCPUState) fixed() [6]section {
	return [6]section{
		{sectionRegs, kvm.Bytes(&c.Regs)},
		{sectionSregs, kvm.Bytes(&c.Sregs)},
		{sectionEvents, kvm.Bytes(&c.Events)},
		{sectionDebugRegs, kvm.Bytes(&c.DebugRegs)},
		{sectionXCRs, kvm.Bytes(&c.XCRs)},
		{sectionLAPIC, kvm.Bytes(&c.LAPIC)},
	}
}

// section is a field's section and the field's memory.
type section struct {
	kind sectionKind
	data []byte
}

func (c *VCPUState) appendTo(b []byte, i int) []byte {
	b = appendSection(b, sectionMP, i, binary.LittleEndian.AppendUint32(nil, uint32(c.MP)))
	for _, f := range c.fixed() {
		b = appendSection(b, f.kind, i, f.data)
	}
	b = appendSection(b, sectionXSave, i, c.XSave)
	b = appendSection(b, sectionMSRs, i, kvm.SliceBytes(c.MSRs))
	return appendSection(b, sectionCPUID, i, kvm.SliceBytes(c.CPUID))
}

// UnmarshalBinary decodes a state. A state that is truncated, corrupt or of a newer format is refused with
// a *StateError that names the field; s is then undefined. The state shares no memory with b.
func (s *State) UnmarshalBinary(b []byte) error {
	body, err := checkState(b)
	if err != nil {
		return err
	}
	*s = State{}
	// The sections are copied once; fields of variable size then point into the copy.
	body = append([]byte(nil), body...)
	var seen sectionSet
	for len(body) > 0 {
		if len(body) < sectionHeadLen {
			return stateError("section header", "%d bytes are left, want %d", len(body), sectionHeadLen)
		}
		le := binary.LittleEndian
		kind, index, n := sectionKind(le.Uint16(body)), le.Uint16(body[2:]), le.Uint32(body[4:])
		body = body[sectionHeadLen:]
		if uint64(n) > uint64(len(body)) {
			return stateError(kind.String(), "length %d exceeds the %d bytes that are left", n, len(body))
		}
		if !seen.add(kind, index) {
			return stateError(kind.String(), "section %d is there twice", index)
		}
		if err := s.decodeSection(kind, int(index), body[:n:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return s.checkComplete(&seen)
}

// checkState checks what frames the sections, and returns them.
func checkState(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(b) < stateHeaderLen+stateTrailerLen {
		return nil, stateError("header", "the state has only %d bytes: it was truncated", len(b))
	}
	if string(b[:len(stateMagic)]) != stateMagic {
		return nil, stateError("magic", "is %q: this is no machine state", b[:len(stateMagic)])
	}
	if v := le.Uint32(b[len(stateMagic):]); v != stateVersion {
		return nil, stateError("format version", "is %d, this build reads %d: use the build that saved it", v, stateVersion)
	}
	if n := le.Uint32(b[len(stateMagic)+4:]); uint64(n) != uint64(len(b)) {
		return nil, stateError("total length", "is %d, but there are %d bytes: it was truncated", n, len(b))
	}
	end := len(b) - stateTrailerLen
	if got, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); got != want {
		return nil, stateError("checksum", "is %#x, want %#x: the state is corrupt", got, want)
	}
	return b[stateHeaderLen:end], nil
}

func (s *State) decodeSection(kind sectionKind, index int, p []byte) error {
	switch kind {
	case sectionMachine:
		return s.decodeMachine(p)
	case sectionIOAPIC:
		s.IOAPIC = p
		return nil
	case sectionSerial:
		s.Serial = p
		return nil
	case sectionDevice:
		if index >= len(s.Devices) {
			return stateError(kind.String(), "number %d of %d", index, len(s.Devices))
		}
		s.Devices[index] = p
		return nil
	}
	if index >= len(s.VCPUs) {
		return stateError(kind.String(), "vCPU number %d of %d", index, len(s.VCPUs))
	}
	return s.VCPUs[index].decodeSection(kind, p)
}

func (s *State) decodeMachine(p []byte) error {
	if len(p) != machineLen {
		return stateError(sectionMachine.String(), "has %d bytes, want %d", len(p), machineLen)
	}
	le := binary.LittleEndian
	s.MemoryBytes = le.Uint64(p)
	copy(s.CPU.Vendor[:], p[8:])
	s.CPU.Family, s.CPU.Model, s.TSCKHz = le.Uint32(p[20:]), le.Uint32(p[24:]), le.Uint32(p[28:])
	s.ClockNanos = le.Uint64(p[32:])
	vcpus, devices := le.Uint32(p[40:]), le.Uint32(p[44:])
	if vcpus < 1 || vcpus > maxVCPUs {
		return stateError("vCPUs", "%d, want 1 to %d", vcpus, maxVCPUs)
	}
	if devices > maxDevices {
		return stateError("devices", "%d, want at most %d", devices, maxDevices)
	}
	s.VCPUs, s.Devices = make([]VCPUState, vcpus), make([][]byte, devices)
	return nil
}

func (c *VCPUState) decodeSection(kind sectionKind, p []byte) error {
	switch kind {
	case sectionMP:
		if len(p) != 4 {
			return stateError(kind.String(), "has %d bytes, want 4", len(p))
		}
		c.MP = kvm.MPState(binary.LittleEndian.Uint32(p))
		return nil
	case sectionXSave:
		c.XSave = p
		return nil
	case sectionMSRs:
		c.MSRs = make([]kvm.MSREntry, min(len(p)/16, kvm.MaxMSRs))
		return copyExactly(kind, kvm.SliceBytes(c.MSRs), p)
	case sectionCPUID:
		c.CPUID = make([]kvm.CPUIDEntry, min(len(p)/40, kvm.MaxCPUIDEntries))
		return copyExactly(kind, kvm.SliceBytes(c.CPUID), p)
	}
	for _, f := range c.fixed() {
		if f.kind == kind {
			return copyExactly(kind, f.data, p)
		}
	}
	return stateError(kind.String(), "is not known to this build: use the build that saved it")
}

func copyExactly(kind sectionKind, dst, src []byte) error {
	if len(dst) != len(src) {
		return stateError(kind.String(), "has %d bytes, want %d", len(src), len(dst))
	}
	copy(dst, src)
	return nil
}

// checkComplete checks that no section is missing.
func (s *State) checkComplete(seen *sectionSet) error {
	need := func(kind sectionKind, n int) error {
		for i := range n {
			if !seen.has(kind, uint16(i)) {
				return stateError(kind.String(), "section %d is missing", i)
			}
		}
		return nil
	}
	for kind := sectionMachine; kind <= sectionDevice; kind++ {
		n := len(s.VCPUs)
		switch kind {
		case sectionMachine, sectionIOAPIC:
			n = 1
		case sectionSerial:
			n = 0
		case sectionDevice:
			n = len(s.Devices)
		}
		if err := need(kind, n); err != nil {
			return err
		}
	}
	return nil
}
