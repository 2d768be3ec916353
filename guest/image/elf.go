package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Offsets in a bzImage's setup header (Documentation/arch/x86/boot.rst).
const (
	offSetupSects    = 0x1f1
	offHeaderMagic   = 0x202
	offPayloadOffset = 0x248
	offPayloadLength = 0x24c
	minHeader        = 0x250
	sector           = 512
)

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// maxELF bounds what a kernel may unpack to.
const maxELF = 512 << 20

// ExtractELF returns the uncompressed kernel inside a bzImage whose payload is zstd, which Debian's 6.12
// kernels use.
func ExtractELF(bzImage []byte) ([]byte, error) {
	if len(bzImage) < minHeader || string(bzImage[offHeaderMagic:offHeaderMagic+4]) != "HdrS" {
		return nil, errors.New("not a bzImage: no setup header")
	}
	le := binary.LittleEndian
	setupSects := int64(bzImage[offSetupSects])
	if setupSects == 0 {
		setupSects = 4 // What 0 means, for historical reasons.
	}
	start := (setupSects+1)*sector + int64(le.Uint32(bzImage[offPayloadOffset:]))
	length := int64(le.Uint32(bzImage[offPayloadLength:]))
	if length < 8 || start+length > int64(len(bzImage)) {
		return nil, fmt.Errorf("the payload (%d bytes at %d) lies outside the bzImage of %d bytes", length, start, len(bzImage))
	}
	payload := bzImage[start : start+length]
	if !bytes.HasPrefix(payload, zstdMagic) {
		return nil, fmt.Errorf("the payload begins with % x, which is not zstd", payload[:4])
	}
	// The build appends the unpacked size as four bytes, which are not part of the zstd frame.
	size := int64(le.Uint32(payload[length-4:]))
	if size > maxELF {
		return nil, fmt.Errorf("the payload claims to unpack to %d bytes", size)
	}
	d, err := zstd.NewReader(bytes.NewReader(payload[:length-4]), zstd.WithDecoderMaxWindow(maxELF))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	elf := make([]byte, size)
	if _, err := io.ReadFull(d, elf); err != nil {
		return nil, fmt.Errorf("unpack the payload: %w", err)
	}
	if !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, errors.New("the payload is not an ELF file")
	}
	return elf, nil
}
