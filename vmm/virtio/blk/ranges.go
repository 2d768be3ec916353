package blk

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// rangeSize is sector (8 bytes), number of sectors (4) and flags (4) of a discard or write-zeroes segment.
const rangeSize = 16

// flagUnmap lets a write-zeroes segment deallocate.
const flagUnmap = 1

// zeros is what write-zeroes writes on files that have neither ZERO_RANGE nor PUNCH_HOLE. Never written to.
var zeros [1 << 16]byte

type segment struct {
	pos, n int64 // bytes
	unmap  bool
}

// ranges serves DISCARD and WRITE_ZEROES. All segments are checked before the first is acted on.
func (d *Device) ranges(c *virtio.Chain, kind uint32) error {
	if d.cfg.ReadOnly {
		return errReadOnly
	}
	n := c.OutLen() - headerSize
	if n == 0 || n%rangeSize != 0 || n/rangeSize > maxRanges {
		return errRange
	}
	var raw [maxRanges * rangeSize]byte
	if err := c.ReadAt(raw[:n], headerSize); err != nil {
		return err
	}
	var segments [maxRanges]segment
	count := int(n / rangeSize)
	for i := range count {
		s, err := d.parse(raw[i*rangeSize:], kind)
		if err != nil {
			return err
		}
		segments[i] = s
	}
	for _, s := range segments[:count] {
		if err := d.clear(s, kind); err != nil {
			return err
		}
	}
	if kind == typeDiscard {
		d.Stats.Discards.Add(1)
		return nil // a hint: it needs no durability
	}
	d.Stats.WriteZeroes.Add(1)
	return d.writeThrough()
}

// parse checks one segment. Unknown flags, and unmap on a discard, are UNSUPP (§5.2.6.2).
func (d *Device) parse(b []byte, kind uint32) (segment, error) {
	sector := binary.LittleEndian.Uint64(b)
	sectors := binary.LittleEndian.Uint32(b[8:])
	flags := binary.LittleEndian.Uint32(b[12:])
	if flags&^flagUnmap != 0 || kind == typeDiscard && flags != 0 {
		return segment{}, errUnsupported
	}
	if sectors > maxRangeSectors {
		return segment{}, errRange
	}
	n := uint64(sectors) * sectorSize
	pos, err := d.offset(sector, n)
	return segment{pos: pos, n: int64(n), unmap: flags&flagUnmap != 0}, err
}

func (d *Device) clear(s segment, kind uint32) error {
	if s.n == 0 {
		return nil
	}
	punch := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	if kind == typeDiscard {
		err := d.fallocate(punch, s)
		if err == unix.EOPNOTSUPP {
			return errUnsupported
		}
		return err
	}
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if s.unmap {
		mode = punch
	}
	if err := d.fallocate(mode, s); err != unix.EOPNOTSUPP {
		return err
	}
	return d.writeZeros(s)
}

func (d *Device) fallocate(mode uint32, s segment) error {
	return retry(func() error { return unix.Fallocate(d.fd, mode, s.pos, s.n) })
}

func (d *Device) writeZeros(s segment) error {
	for s.n > 0 {
		m, err := unix.Pwrite(d.fd, zeros[:min(s.n, int64(len(zeros)))], s.pos)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		s.pos, s.n = s.pos+int64(m), s.n-int64(m)
	}
	return nil
}
