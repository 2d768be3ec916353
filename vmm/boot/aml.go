package boot

import (
	"encoding/binary"
	"slices"
)

// A small encoder for the ACPI Machine Language: each function returns the bytes of one term (ACPI 6.5
// §20.2). It has only what the board's DSDT needs.

const (
	amlName    = 0x08
	amlByte    = 0x0a
	amlWord    = 0x0b
	amlDWord   = 0x0c
	amlString  = 0x0d
	amlScope   = 0x10
	amlBuffer  = 0x11
	amlPackage = 0x12
	amlExt     = 0x5b
	amlDevice  = 0x82
	amlZero    = 0x00
	amlOne     = 0x01
)

// pkgLength encodes the length of a package whose content has n bytes; the encoding counts itself.
func pkgLength(n int) []byte {
	if n+1 < 1<<6 {
		return []byte{byte(n + 1)}
	}
	for extra := 1; extra <= 3; extra++ {
		total := n + 1 + extra
		if total >= 1<<(4+8*extra) {
			continue
		}
		b := []byte{byte(extra)<<6 | byte(total&0x0f)}
		for i := range extra {
			b = append(b, byte(total>>(4+8*i)))
		}
		return b
	}
	panic("boot: AML package of 256 MiB")
}

func packaged(opcode []byte, content ...[]byte) []byte {
	body := slices.Concat(content...)
	return slices.Concat(opcode, pkgLength(len(body)), body)
}

// amlInt encodes an integer in the fewest bytes.
func amlInt(v uint32) []byte {
	le := binary.LittleEndian
	switch {
	case v == 0:
		return []byte{amlZero}
	case v == 1:
		return []byte{amlOne}
	case v < 1<<8:
		return []byte{amlByte, byte(v)}
	case v < 1<<16:
		return le.AppendUint16([]byte{amlWord}, uint16(v))
	}
	return le.AppendUint32([]byte{amlDWord}, v)
}

func amlText(s string) []byte { return append(append([]byte{amlString}, s...), 0) }

// named defines name, which has four characters, as value.
func named(name string, value []byte) []byte {
	return slices.Concat([]byte{amlName}, []byte(name), value)
}

func scope(path string, terms ...[]byte) []byte {
	return packaged([]byte{amlScope}, append([][]byte{[]byte(path)}, terms...)...)
}

func device(name string, terms ...[]byte) []byte {
	return packaged([]byte{amlExt, amlDevice}, append([][]byte{[]byte(name)}, terms...)...)
}

func pkg(elements ...[]byte) []byte {
	return packaged([]byte{amlPackage}, append([][]byte{{byte(len(elements))}}, elements...)...)
}

// resources is the buffer of a _CRS object (ACPI 6.5 §6.4).
func resources(descriptors ...[]byte) []byte {
	body := append(slices.Concat(descriptors...), 0x79, 0) // end tag; checksum 0 counts as right
	return packaged([]byte{amlBuffer}, amlInt(uint32(len(body))), body)
}

// memory32Fixed describes a range of device memory (§6.4.3.4).
func memory32Fixed(base, size uint32) []byte {
	b := []byte{0x86, 9, 0, 1}
	b = binary.LittleEndian.AppendUint32(b, base)
	return binary.LittleEndian.AppendUint32(b, size)
}

// edgeInterrupt describes an exclusive, edge-triggered, active-high interrupt (§6.4.3.6).
func edgeInterrupt(gsi uint32) []byte {
	const consumer, edge = 1 << 0, 1 << 1
	return binary.LittleEndian.AppendUint32([]byte{0x89, 6, 0, consumer | edge, 1}, gsi)
}

// ioPorts describes count ports from base (§6.4.2.5).
func ioPorts(base uint16, count byte) []byte {
	const decode16 = 1
	b := []byte{0x47, decode16}
	b = binary.LittleEndian.AppendUint16(b, base)
	b = binary.LittleEndian.AppendUint16(b, base)
	return append(b, 1, count)
}
