package boot

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Offsets in a bzImage's setup header (Documentation/arch/x86/boot.rst).
const (
	bzSetupSects    = 0x1f1
	bzPayloadOffset = 0x248
	bzPayloadLength = 0x24c
	bzHeaderEnd     = 0x250
	sectorBytes     = 512
	// minPayloadProtocol is the first protocol version with the payload fields.
	minPayloadProtocol = 0x0208
	// maxKernelBytes bounds what a hostile image can make us allocate.
	maxKernelBytes = 512 << 20
)

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// ExtractELF unpacks the ELF kernel from a bzImage whose payload is compressed with zstd, as Debian's are
// from Linux 6.12 on. Errors name the field that is wrong.
func ExtractELF(bzImage []byte) ([]byte, error) {
	payload, err := bzPayload(bzImage)
	if err != nil {
		return nil, fmt.Errorf("bzImage: %w", err)
	}
	if !bytes.HasPrefix(payload, zstdMagic) {
		return nil, fmt.Errorf("bzImage: the payload starts with % x and is not zstd: use a kernel built with CONFIG_KERNEL_ZSTD", payload[:4])
	}
	// The build appends the unpacked size to the compressed stream.
	stream, size := payload[:len(payload)-4], binary.LittleEndian.Uint32(payload[len(payload)-4:])
	if size > maxKernelBytes {
		return nil, fmt.Errorf("bzImage: unpacked size is %d bytes, at most %d are taken", size, maxKernelBytes)
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxKernelBytes), zstd.WithDecoderMaxWindow(maxKernelBytes))
	if err != nil {
		return nil, fmt.Errorf("bzImage: %w", err)
	}
	defer d.Close()
	elf, err := d.DecodeAll(stream, make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("bzImage: unpack payload: %w", err)
	}
	if len(elf) != int(size) {
		return nil, fmt.Errorf("bzImage: the payload unpacks to %d bytes, its header says %d", len(elf), size)
	}
	return elf, nil
}

// bzPayload finds the compressed kernel; it has at least 8 bytes.
func bzPayload(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(b) < bzHeaderEnd {
		return nil, fmt.Errorf("%d bytes are fewer than a setup header", len(b))
	}
	if le.Uint32(b[bpHeader:]) != headerMagic {
		return nil, fmt.Errorf("no \"HdrS\" at offset %#x", bpHeader)
	}
	if v := le.Uint16(b[bpVersion:]); v < minPayloadProtocol {
		return nil, fmt.Errorf("boot protocol %#x is older than %#x", v, minPayloadProtocol)
	}
	sects := uint64(b[bzSetupSects])
	if sects == 0 {
		sects = 4 // what a 0 means, for compatibility with very old kernels
	}
	start := (sects+1)*sectorBytes + uint64(le.Uint32(b[bzPayloadOffset:]))
	n := uint64(le.Uint32(b[bzPayloadLength:]))
	if n < 8 || start > uint64(len(b)) || n > uint64(len(b))-start {
		return nil, fmt.Errorf("payload_length: %d bytes at %d do not lie in the file's %d bytes", n, start, len(b))
	}
	return b[start : start+n], nil
}
