// Package net is the virtio network device (virtio 1.2 §5.1) on a TAP. Frames move with their virtio-net headers
// by readv and writev between the TAP and guest memory, without a copy of ours; checksums and TCP segmentation are
// left to whoever does them best:
//
//	guest → TAP: the notification writes each frame straight from the guest's buffers
//	TAP → guest: one goroutine waits in the runtime's poller, then reads frames straight into the guest's buffers
//
// Nothing is queued here: a frame that the TAP does not take is lost, as on a wire, and one that the guest has no
// buffers for waits in the TAP.
package net

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio"
)

// deviceType is the virtio device ID.
const deviceType = 1

// Queues, in order (§5.1.2).
const (
	queueRX = 0
	queueTX = 1
)

// Feature bits (§5.1.3).
const (
	featureCSum      = 1 << 0
	featureGuestCSum = 1 << 1
	featureMTU       = 1 << 3
	featureMAC       = 1 << 5
	featureGuestTSO4 = 1 << 7
	featureGuestTSO6 = 1 << 8
	featureHostTSO4  = 1 << 11
	featureHostTSO6  = 1 << 12
	featureMrgRxBuf  = 1 << 15
	featureStatus    = 1 << 16

	features = featureCSum | featureGuestCSum | featureMTU | featureMAC | featureGuestTSO4 | featureGuestTSO6 |
		featureHostTSO4 | featureHostTSO6 | featureMrgRxBuf | featureStatus
)

const (
	queueSize = virtio.MaxQueueSize
	// turn is how many frames are moved before the guest is told and others get the lock.
	turn = 64
	// configSize is the configuration space up to mtu.
	configSize = 12
	// statusLinkUp is the only status there is: the link of a TAP never goes down.
	statusLinkUp = 1
	// minMTU is what IPv4 demands of a link (RFC 791 §3.2); maxMTU is the most that a frame can carry.
	minMTU, maxMTU = 68, 65535
)

// Config describes a network card.
type Config struct {
	// MAC is the guest's, six bytes and not a group's.
	MAC net.HardwareAddr
	// MTU in bytes, 68 to 65535; 1500 for 0.
	MTU uint16
}

// Stats may be read at any time. Out is from the guest, In to it; bytes are of frames without their headers.
type Stats struct {
	FramesOut, FramesIn, BytesOut, BytesIn atomic.Uint64
	// DroppedOut are frames that the TAP didn't take, DroppedIn those for which the guest's whole queue had no room.
	DroppedOut, DroppedIn atomic.Uint64
	// Malformed are chains that are no frame: too short, too long, or with a header that was not negotiated.
	Malformed atomic.Uint64
	// Failed is 1 once the TAP can't be read any more.
	Failed atomic.Uint64
}

// Device is one network card. The transport serialises all calls.
type Device struct {
	Stats Stats

	file *os.File // nil, as raw is, where there is no cable
	raw  syscall.RawConn
	cfg  Config
	// wake has a token when the goroutine that reads has reason to look again: the device was activated, the guest
	// offered buffers, or Close was called.
	wake    chan struct{}
	closing chan struct{}
	// lock is the transport's, and ended is closed when the goroutine ends; both are set once, before it begins.
	lock  sync.Locker
	ended chan struct{}

	// The transport's lock guards all that follows.
	backend virtio.Backend
	active  bool
	tx      virtio.Chain
	header  [headerSize]byte
	spare   [1]byte // gets a byte only of a frame that is longer than the guest's buffers
	iov     [][]byte
	vector  vector
	rx      taken
}

// New returns a network card on a TAP made with IFF_VNET_HDR and headers of 12 bytes, or on a socket of messages that
// are such frames. The file must be in non-blocking mode. The caller closes it after Close.
func New(file *os.File, cfg Config) (*Device, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.MTU < minMTU {
		return nil, fmt.Errorf("network card: MTU %d is out of range %d to %d", cfg.MTU, minMTU, maxMTU)
	}
	if len(cfg.MAC) != 6 || cfg.MAC[0]&1 != 0 {
		return nil, fmt.Errorf("network card: %q is not the MAC address of one station", cfg.MAC)
	}
	d := &Device{file: file, cfg: cfg, wake: make(chan struct{}, 1), closing: make(chan struct{})}
	if file == nil {
		return d, nil
	}
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("network card: %s can't be waited for (open it with O_NONBLOCK): %w", file.Name(), err)
	}
	var err error
	if d.raw, err = file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("network card: %w", err)
	}
	return d, nil
}

// Close ends the goroutine that reads and waits for it. The transport must have been reset or closed before.
func (d *Device) Close() error {
	close(d.closing)
	if d.file == nil {
		return nil
	}
	// Whatever waits for a frame is told that the time is over.
	err := d.file.SetReadDeadline(time.Unix(1, 0))
	d.poke()
	if d.ended != nil {
		<-d.ended
	}
	return err
}

// Type is the virtio device ID of network cards.
func (d *Device) Type() uint32 { return deviceType }

// QueueSizes offers one queue for each direction.
func (d *Device) QueueSizes() []uint16 { return []uint16{queueSize, queueSize} }

// Features are the same for every card.
func (d *Device) Features() uint64 { return features }

// ReadConfig serves the configuration space (§5.1.4): MAC, status, no multiqueue, MTU.
func (d *Device) ReadConfig(offset uint64, p []byte) {
	var c [configSize]byte
	copy(c[:], d.cfg.MAC)
	binary.LittleEndian.PutUint16(c[6:], statusLinkUp)
	binary.LittleEndian.PutUint16(c[10:], d.cfg.MTU)
	clear(p)
	if offset < configSize {
		copy(p, c[offset:])
	}
}

// WriteConfig ignores writes: nothing in the configuration space is the driver's.
func (d *Device) WriteConfig(uint64, []byte) {}

// Activate takes the queues, and tells the TAP which frames the guest can take.
func (d *Device) Activate(b virtio.Backend) error {
	d.backend, d.active = b, true
	if d.file == nil {
		return nil
	}
	if err := d.setOffloads(b.Features); err != nil {
		return fmt.Errorf("network card %s: %w", d.file.Name(), err)
	}
	if d.ended == nil {
		d.lock, d.ended = b.Lock, make(chan struct{})
		go d.receive()
	}
	d.poke()
	return nil
}

// setOffloads: what the guest can't take must reach it with checksums filled in, and in segments. A socket has no
// such switch, and what comes out of it is its peer's matter.
func (d *Device) setOffloads(negotiated uint64) error {
	flags := 0
	if negotiated&featureGuestCSum != 0 {
		flags |= unix.TUN_F_CSUM
		// The driver must not ask for these without the one above (§5.1.3.1); here it would get neither.
		if negotiated&featureGuestTSO4 != 0 {
			flags |= unix.TUN_F_TSO4
		}
		if negotiated&featureGuestTSO6 != 0 {
			flags |= unix.TUN_F_TSO6
		}
	}
	var err error
	if cerr := d.raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, flags) }); cerr != nil {
		return cerr
	}
	if err != nil && err != unix.ENOTTY {
		return fmt.Errorf("set offloads %#x: %w", flags, err)
	}
	return nil
}

// Reset forgets the queues. Frames that wait in the TAP stay there.
func (d *Device) Reset() {
	d.backend, d.active = virtio.Backend{}, false
	d.tx, d.rx = virtio.Chain{}, taken{}
}

// Notify sends the guest's frames, or has its new buffers filled.
func (d *Device) Notify(queue int) {
	if !d.active {
		return
	}
	if queue == queueTX {
		d.send()
		return
	}
	d.poke()
}

// poke gives the goroutine reason to look.
func (d *Device) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
