package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/memsnap"
	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/boot"
	"cella.dev/cella/vmm/virtio/blk"
	virtionet "cella.dev/cella/vmm/virtio/net"
	"cella.dev/cella/vmm/virtio/rng"
	"cella.dev/cella/vmm/virtio/vsock"
)

// guestCID is every guest's vsock address: a clone is told apart by its worker, not by an address.
const guestCID = 3

// server is the worker's side of the control socket.
type server struct {
	conn    *net.UnixConn
	machine *vmm.Machine
	pagemap *os.File // this process's, for opTouched
	vsock   *vsock.Device
}

// Serve is the whole life of a worker process: it prepares a machine of the given shape and obeys the
// control socket until that closes or the machine ends.
func Serve(shape vmm.Shape) error {
	conn, err := unixConn(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("control socket (a worker is started by cella, not by hand): %w", err)
	}
	s := &server{conn: conn}
	if err := s.prepare(shape); err != nil {
		send(conn, message{Exited: err.Error()})
		return err
	}
	if err := send(conn, message{Ready: true}); err != nil {
		return err
	}
	go s.watch()
	return s.serve()
}

// prepare makes the machine, opens what it will need of the host, and then gives up the rest.
func (s *server) prepare(shape vmm.Shape) (err error) {
	if s.machine, err = vmm.New(shape); err != nil {
		return err
	}
	if s.pagemap, err = os.Open("/proc/self/pagemap"); err != nil {
		return err
	}
	return jail()
}

// watch ends the process when the machine has ended. The kernel frees what the process holds faster than
// code of ours could.
func (s *server) watch() {
	<-s.machine.Done()
	send(s.conn, message{Exited: s.machine.Exit().String()})
	os.Exit(0)
}

func (s *server) serve() error {
	for {
		var r request
		files, err := receive(s.conn, &r)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m, err := s.handle(r, files)
		closeAll(files)
		m.Reply = true
		if err != nil {
			m.Error = err.Error()
		}
		if err := send(s.conn, m); err != nil {
			return err
		}
	}
}

func (s *server) handle(r request, files []*os.File) (message, error) {
	var tap *os.File
	if last := len(files) - 1; r.Tap && last >= 0 {
		tap, files = files[last], files[:last]
	}
	switch {
	case r.Op == opBoot && (len(files) == 4 || len(files) == 5):
		return message{}, s.boot(r, files, tap)
	case r.Op == opRestore && len(files) == 4:
		return s.restore(r, files, tap)
	case r.Op == opSave && len(files) == 2:
		return s.save(files[0], files[1])
	case r.Op == opTouched && len(files) == 1:
		return message{}, s.touched(files[0])
	default:
		return message{}, fmt.Errorf("operation %q with %d files is not known", r.Op, len(files))
	}
}

func (s *server) boot(r request, files []*os.File, tap *os.File) error {
	kernel, initrd, disk, listener := files[0], files[1], files[2], files[3]
	if len(files) == 5 {
		console, err := dup(files[4])
		if err != nil {
			return err
		}
		s.machine.SetConsole(console)
	}
	if err := s.machine.MapMemory(-1, true); err != nil {
		return err
	}
	if err := s.addDevices(disk, r.Card, tap); err != nil {
		return err
	}
	image := boot.Image{Cmdline: r.Cmdline}
	var err error
	if image.Kernel, err = boot.FileSource(kernel); err != nil {
		return err
	}
	if image.Initrd, err = boot.FileSource(initrd); err != nil {
		return err
	}
	if err := s.machine.Load(image); err != nil {
		return err
	}
	if err := s.machine.Start(); err != nil {
		return err
	}
	return s.listen(listener)
}

func (s *server) restore(r request, files []*os.File, tap *os.File) (message, error) {
	state, memory, disk, listener := files[0], files[1], files[2], files[3]
	var steps []Step
	last := time.Now()
	step := func(name string, err error) error {
		now := time.Now()
		steps = append(steps, Step{Name: name, Nanos: now.Sub(last).Nanoseconds()})
		last = now
		return err
	}
	st, err := readState(state)
	if step("decode", err) != nil {
		return message{}, err
	}
	if err := step("map", s.machine.MapMemory(int(memory.Fd()), true)); err != nil {
		return message{}, err
	}
	if r.Record {
		if err := s.machine.Record(); err != nil {
			return message{}, err
		}
	}
	if err := step("devices", s.addDevices(disk, r.Card, tap)); err != nil {
		return message{}, err
	}
	if err := step("state", s.machine.Restore(st)); err != nil {
		return message{}, err
	}
	if r.WorkingSet != nil {
		if err := step("prefault", s.prefault(r.WorkingSet)); err != nil {
			return message{}, err
		}
	}
	if err := step("start", s.machine.Start()); err != nil {
		return message{}, err
	}
	return message{Steps: steps}, s.listen(listener)
}

func (s *server) prefault(encoded []byte) error {
	var ws vmm.WorkingSet
	if err := ws.UnmarshalBinary(encoded); err != nil {
		return err
	}
	return s.machine.Prefault(ws)
}

func (s *server) touched(out *os.File) error {
	ws, err := s.machine.Touched(s.pagemap)
	if err != nil {
		return err
	}
	data, err := ws.MarshalBinary()
	if err != nil {
		return err
	}
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("write working set: %w", err)
	}
	return nil
}

func readState(f *os.File) (*vmm.State, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	var st vmm.State
	if err := st.UnmarshalBinary(data); err != nil {
		return nil, err
	}
	return &st, nil
}

// addDevices gives the machine its devices. The order is part of the snapshot format: it gives each its
// address and interrupt. The network card, which not every template has, is the last.
func (s *server) addDevices(disk *os.File, card *Card, tap *os.File) error {
	own, err := dup(disk)
	if err != nil {
		return err
	}
	block, err := blk.New(own, blk.Config{})
	if err != nil {
		return err
	}
	if err := s.machine.AddDevice(block); err != nil {
		return err
	}
	s.vsock = vsock.New(guestCID)
	if err := s.machine.AddDevice(s.vsock); err != nil {
		return err
	}
	if err := s.machine.AddDevice(rng.New()); err != nil || card == nil {
		return err
	}
	return s.addCard(card, tap)
}

func (s *server) addCard(card *Card, tap *os.File) error {
	mac, err := net.ParseMAC(card.MAC)
	if err != nil {
		return fmt.Errorf("network card: %w", err)
	}
	var own *os.File
	if tap != nil {
		if own, err = dup(tap); err != nil {
			return err
		}
	}
	dev, err := virtionet.New(own, virtionet.Config{MAC: mac, MTU: card.MTU})
	if err != nil {
		return err
	}
	return s.machine.AddDevice(dev)
}

// listen takes connections into the guest from now on.
func (s *server) listen(f *os.File) error {
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("vsock listener: %w", err)
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		return fmt.Errorf("vsock listener is a %T, want a unix socket", l)
	}
	go s.vsock.Serve(unixListener)
	return nil
}

// save stops the machine for good and writes it out.
func (s *server) save(state, memory *os.File) (message, error) {
	if err := s.machine.Pause(); err != nil {
		return message{}, err
	}
	st, err := s.machine.Save()
	if err != nil {
		return message{}, err
	}
	data, err := st.MarshalBinary()
	if err != nil {
		return message{}, err
	}
	if _, err := state.Write(data); err != nil {
		return message{}, fmt.Errorf("write state: %w", err)
	}
	info, err := memsnap.WriteMemory(memory, s.machine.RAM())
	return message{Memory: &info}, err
}

// dup gives the machine a descriptor of its own: those of a request are closed when it has been answered.
func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
