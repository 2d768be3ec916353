package blk

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// Request types (§5.2.6).
const (
	typeIn          = 0
	typeOut         = 1
	typeFlush       = 4
	typeGetID       = 8
	typeDiscard     = 11
	typeWriteZeroes = 13
)

// Request results, in the last byte of the chain.
const (
	statusOK          = 0
	statusIOErr       = 1
	statusUnsupported = 2
)

// headerSize is type, reserved and sector at the start of every chain.
const headerSize = 16

// errUnsupported is answered with UNSUPP, every other error with IOERR.
var errUnsupported = errors.New("unsupported request")

// errRange is a request beyond the disk's end or not in whole sectors.
var errRange = errors.New("request out of range")

// errReadOnly is a write to a read-only disk.
var errReadOnly = errors.New("disk is read-only")

// serve works on one request and returns how many bytes of the chain it wrote. A chain without a header or
// a byte for the status can't be answered; it is returned unwritten.
func (d *Device) serve(c *virtio.Chain) uint32 {
	var h [headerSize]byte
	if c.InLen() == 0 || c.ReadAt(h[:], 0) != nil {
		d.Stats.Malformed.Add(1)
		return 0
	}
	kind := binary.LittleEndian.Uint32(h[0:])
	sector := binary.LittleEndian.Uint64(h[8:])
	n, err := d.execute(c, kind, sector)
	status := [1]byte{statusOK}
	switch {
	case errors.Is(err, errUnsupported):
		status[0] = statusUnsupported
		d.Stats.Unsupported.Add(1)
	case err != nil:
		status[0] = statusIOErr
		d.Stats.Errors.Add(1)
	}
	if c.WriteAt(status[:], c.InLen()-1) != nil {
		d.Stats.Malformed.Add(1)
		return 0
	}
	if err != nil || n != c.InLen()-1 {
		// The used length promises a written prefix only (§2.7.8.2), so with a gap it is what came before.
		return uint32(n)
	}
	return uint32(n) + 1
}

// execute returns how many bytes at the start of the writable part hold data.
func (d *Device) execute(c *virtio.Chain, kind uint32, sector uint64) (uint64, error) {
	switch kind {
	case typeIn:
		return d.read(c, sector)
	case typeOut:
		return 0, d.write(c, sector)
	case typeFlush:
		d.Stats.Flushes.Add(1)
		return 0, d.flush()
	case typeGetID:
		return d.getID(c)
	case typeDiscard, typeWriteZeroes:
		return 0, d.ranges(c, kind)
	}
	return 0, errUnsupported
}

// offset checks that n bytes from sector on are whole sectors of the disk, and gives the file position.
func (d *Device) offset(sector, n uint64) (int64, error) {
	if n%sectorSize != 0 || sector > d.sectors || n/sectorSize > d.sectors-sector {
		return 0, errRange
	}
	return int64(sector * sectorSize), nil
}

func (d *Device) read(c *virtio.Chain, sector uint64) (uint64, error) {
	n := c.InLen() - 1
	pos, err := d.offset(sector, n)
	if err != nil {
		return 0, err
	}
	d.Stats.Reads.Add(1)
	done, err := d.transfer(unix.Preadv, c.In, 0, n, pos)
	d.Stats.ReadBytes.Add(done)
	return done, err
}

func (d *Device) write(c *virtio.Chain, sector uint64) error {
	if d.cfg.ReadOnly {
		return errReadOnly
	}
	n := c.OutLen() - headerSize
	pos, err := d.offset(sector, n)
	if err != nil {
		return err
	}
	d.Stats.Writes.Add(1)
	done, err := d.transfer(unix.Pwritev, c.Out, headerSize, n, pos)
	d.Stats.WriteBytes.Add(done)
	if err != nil {
		return err
	}
	return d.writeThrough()
}

// writeThrough makes a write durable at once for a driver that did not negotiate FLUSH and so can't ask for
// it (§5.2.6.2).
func (d *Device) writeThrough() error {
	if d.backend.Features&featureFlush != 0 {
		return nil
	}
	return d.flush()
}

func (d *Device) flush() error {
	if d.cfg.ReadOnly {
		return nil
	}
	return retry(func() error { return unix.Fdatasync(d.fd) })
}

// transfer moves n bytes between bufs, from skip on, and the file at pos. It returns how many it moved; that
// is n or there is an error.
func (d *Device) transfer(op func(int, [][]byte, int64) (int, error), bufs [][]byte, skip, n uint64, pos int64) (uint64, error) {
	for done := uint64(0); ; {
		if done == n {
			return done, nil
		}
		d.iov = virtio.Slice(d.iov[:0], bufs, skip+done, n-done)
		m, err := op(d.fd, d.iov, pos+int64(done))
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
		case err != nil:
			return done, err
		case m == 0:
			return done, errRange // the file shrank
		default:
			done += uint64(m)
		}
	}
}

func (d *Device) getID(c *virtio.Chain) (uint64, error) {
	var id [idSize]byte
	copy(id[:], d.cfg.Serial)
	n := min(c.InLen()-1, idSize)
	return n, c.WriteAt(id[:n], 0)
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
