// Package blk is the virtio block device (virtio 1.2 §5.2) on an open file. Data moves by preadv and
// pwritev between the file and guest memory, without a copy; requests are worked on in the goroutine that
// delivers the notification.
package blk

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"cella.dev/cella/vmm/virtio"
)

// deviceType is the virtio device ID.
const deviceType = 2

// sectorSize is the unit of all positions and of the capacity, whatever the block size (§5.2.4).
const sectorSize = 512

// Feature bits (§5.2.3).
const (
	featureSegMax      = 1 << 2
	featureRO          = 1 << 5
	featureBlkSize     = 1 << 6
	featureFlush       = 1 << 9
	featureDiscard     = 1 << 13
	featureWriteZeroes = 1 << 14
)

const (
	queueSize = virtio.MaxQueueSize
	// segMax leaves room for the request's header and status in a chain.
	segMax = queueSize - 2
	// maxRangeSectors bounds one segment of a discard or write-zeroes request: 1 GiB.
	maxRangeSectors = 1 << 21
	// maxRanges bounds the segments of one such request.
	maxRanges = 16
	// configSize is the configuration space up to write_zeroes_may_unmap and its padding.
	configSize = 60
	// idSize is the length of the serial number that GET_ID returns.
	idSize = 20
)

// Config describes a disk.
type Config struct {
	// ReadOnly disks refuse writes, whatever the file allows.
	ReadOnly bool
	// Serial is what the guest sees as the disk's serial number, cut to 20 bytes.
	Serial string
	// BlockSize is the guest's logical block in bytes: 512 (also for 0) to 4096, a power of two.
	BlockSize uint32
}

// Stats may be read at any time.
type Stats struct {
	Reads, Writes, Flushes, Discards, WriteZeroes atomic.Uint64
	ReadBytes, WriteBytes                         atomic.Uint64
	// Errors are requests answered with IOERR, Unsupported those with UNSUPP, Malformed those that had
	// no header or no room for a status.
	Errors, Unsupported, Malformed atomic.Uint64
}

// Device is one disk. The transport serialises all calls.
type Device struct {
	Stats Stats

	file    *os.File
	fd      int
	cfg     Config
	sectors uint64
	backend virtio.Backend
	active  bool

	// Reused from request to request.
	chain virtio.Chain
	iov   [][]byte
}

// New returns a disk on file, whose size now is the disk's capacity. The caller keeps the file open for as
// long as the device lives, and closes it.
func New(file *os.File, cfg Config) (*Device, error) {
	if cfg.BlockSize == 0 {
		cfg.BlockSize = sectorSize
	}
	if cfg.BlockSize < sectorSize || cfg.BlockSize > 4096 || cfg.BlockSize&(cfg.BlockSize-1) != 0 {
		return nil, fmt.Errorf("disk %s: block size %d is not a power of two from 512 to 4096", file.Name(), cfg.BlockSize)
	}
	// Seeking finds the size of block devices too; nothing else uses the file's position.
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("size of disk %s: %w", file.Name(), err)
	}
	if size == 0 || size%int64(cfg.BlockSize) != 0 {
		return nil, fmt.Errorf("disk %s has %d bytes, which is not a positive multiple of its block size %d: truncate it up to one",
			file.Name(), size, cfg.BlockSize)
	}
	return &Device{file: file, fd: int(file.Fd()), cfg: cfg, sectors: uint64(size) / sectorSize}, nil
}

// Type is the virtio device ID of block devices.
func (d *Device) Type() uint32 { return deviceType }

// QueueSizes offers one queue.
func (d *Device) QueueSizes() []uint16 { return []uint16{queueSize} }

// Features depend on whether the disk is read-only.
func (d *Device) Features() uint64 {
	f := uint64(featureSegMax | featureBlkSize | featureFlush)
	if d.cfg.ReadOnly {
		return f | featureRO
	}
	return f | featureDiscard | featureWriteZeroes
}

// ReadConfig serves the configuration space (§5.2.4).
func (d *Device) ReadConfig(offset uint64, p []byte) {
	var c [configSize]byte
	le := binary.LittleEndian
	le.PutUint64(c[0:], d.sectors)
	le.PutUint32(c[12:], segMax)
	le.PutUint32(c[20:], d.cfg.BlockSize)
	if !d.cfg.ReadOnly {
		le.PutUint32(c[36:], maxRangeSectors)
		le.PutUint32(c[40:], maxRanges)
		le.PutUint32(c[44:], d.cfg.BlockSize/sectorSize)
		le.PutUint32(c[48:], maxRangeSectors)
		le.PutUint32(c[52:], maxRanges)
		c[56] = 1 // write_zeroes_may_unmap
	}
	clear(p)
	if offset < configSize {
		copy(p, c[offset:])
	}
}

// WriteConfig ignores writes: nothing in the configuration space is the driver's.
func (d *Device) WriteConfig(uint64, []byte) {}

// Activate takes the queue.
func (d *Device) Activate(b virtio.Backend) error {
	d.backend, d.active = b, true
	return nil
}

// Reset forgets the queue. Requests never outlive Notify, so there is nothing to wait for.
func (d *Device) Reset() {
	d.backend, d.active = virtio.Backend{}, false
	d.chain = virtio.Chain{}
}

// turn is how many requests are served before the guest is told and others get the lock.
const turn = 32

// Notify works off the queue.
func (d *Device) Notify(int) {
	for n := 1; d.active; n++ {
		q := d.backend.Queues[0]
		if !q.Pop(&d.chain) {
			if q.Rearm() {
				continue
			}
			d.backend.Interrupt(0)
			return
		}
		q.Push(&d.chain, d.serve(&d.chain))
		if n%turn == 0 {
			lock := d.backend.Lock
			d.backend.Interrupt(0)
			lock.Unlock()
			lock.Lock()
		}
	}
}
