package vmm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/nano"
	"cella.dev/cella/vmm/virtio"
)

// deadline bounds one wait for a nano guest, which takes microseconds.
const deadline = 10 * time.Second

func TestGuestEndsMachine(t *testing.T) {
	for _, c := range []struct {
		program nano.Program
		want    vmm.Reason
		detail  string
	}{
		{nano.PowerOff, vmm.PowerOff, "the guest powered off"},
		{nano.Reset, vmm.Reset, "the guest asked for a reset"},
		{nano.TripleFault, vmm.Crash, "vCPU 0: triple fault"},
	} {
		t.Run(c.program.Name, func(t *testing.T) {
			m := newMachine(t, 1)
			load(t, m, c.program)
			await(t, m.Done())
			e := m.Exit()
			if e.Reason != c.want || !strings.HasPrefix(e.Detail, c.detail) {
				t.Errorf("exit is %v, want %v: %s", e, c.want, c.detail)
			}
			if err := m.Pause(); !errors.Is(err, vmm.ErrStopped) {
				t.Errorf("pause of a stopped machine: %v, want ErrStopped", err)
			}
		})
	}
}

func TestPauseStopsGuestUntilResume(t *testing.T) {
	m, out := newCounter(t, 1)
	load(t, m, nano.Counter)
	out.awaitLines(t, 3)
	for range 5 {
		must(t, m.Pause())
		stopped := out.lines()
		ram := append([]byte(nil), m.RAM()[0]...)
		if _, err := m.Save(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ram, m.RAM()[0]) || out.lines() != stopped {
			t.Fatal("the guest ran while the machine was paused")
		}
		must(t, m.Resume())
		out.awaitLines(t, stopped+2)
	}
	checkCounts(t, out.counts(t), 1)
}

func TestMachineRefusesWrongPhase(t *testing.T) {
	m := newMachine(t, 1)
	for name, f := range map[string]func() error{
		"start": m.Start, "pause": m.Pause, "resume": m.Resume,
		"save": func() error { _, err := m.Save(); return err },
	} {
		if f() == nil {
			t.Errorf("%s of a machine without a guest succeeded", name)
		}
	}
	must(t, m.Close())
	must(t, m.Close())
	await(t, m.Done())
	if e := m.Exit(); e.Reason != vmm.Stopped {
		t.Errorf("exit of a closed machine is %v", e)
	}
}

func TestCloseStopsRunningGuest(t *testing.T) {
	m, out := newCounter(t, 1)
	load(t, m, nano.Counter)
	out.awaitLines(t, 1)
	must(t, m.Close())
	lines := out.lines()
	await(t, m.Done())
	if got := out.lines(); got != lines {
		t.Errorf("%d lines after Close, then %d", lines, got)
	}
}

func TestShapeIsChecked(t *testing.T) {
	for _, s := range []vmm.Shape{{}, {VCPUs: 1}, {VCPUs: 65, MemoryBytes: 1 << 30}, {VCPUs: 1, MemoryBytes: 4<<20 + 1}, {VCPUs: -1, MemoryBytes: 4 << 20}} {
		if m, err := vmm.New(s); err == nil {
			m.Close()
			t.Errorf("%+v was accepted", s)
		}
	}
}

// TestClonesGoOnAndDiverge restores two machines from one state and one memory file. Both the memory's and
// the register's count go on in each, and what one writes the other does not see.
func TestClonesGoOnAndDiverge(t *testing.T) {
	for _, vcpus := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d vCPUs", vcpus), func(t *testing.T) {
			ram, state, saved := savedCounter(t, vcpus)
			first, firstOut := restored(t, vcpus, ram, state)
			must(t, first.Start())
			firstOut.awaitLines(t, 20)
			second, secondOut := restored(t, vcpus, ram, state)
			must(t, second.Start())
			secondOut.awaitLines(t, 3)
			for _, out := range []*lineBuffer{firstOut, secondOut} {
				checkCounts(t, out.counts(t), saved+1)
			}
			var inFile [8]byte
			if _, err := unix.Pread(ram, inFile[:], nano.CounterAddr); err != nil {
				t.Fatal(err)
			}
			if got := binary.LittleEndian.Uint64(inFile[:]); got != saved && got != saved+1 {
				t.Errorf("the clones changed the shared memory: the count is %d, %d were printed", got, saved)
			}
		})
	}
}

func TestRestoreOfRestore(t *testing.T) {
	ram, state, saved := savedCounter(t, 1)
	for range 3 {
		m, out := restored(t, 1, ram, state)
		must(t, m.Start())
		out.awaitLines(t, 4)
		must(t, m.Pause())
		counts := out.counts(t)
		checkCounts(t, counts, saved+1)
		saved = counts[len(counts)-1]
		state = save(t, m)
		next := memfd(t)
		if _, err := unix.Pwrite(next, m.RAM()[0], 0); err != nil {
			t.Fatal(err)
		}
		ram = next
	}
}

func TestRestoreRefusesOtherShape(t *testing.T) {
	_, state, _ := savedCounter(t, 1)
	for name, c := range map[string]struct {
		vcpus   int
		console bool
		change  func(*vmm.State)
		field   string
	}{
		"more vCPUs":   {2, true, func(*vmm.State) {}, "vCPUs"},
		"no console":   {1, false, func(*vmm.State) {}, "serial port"},
		"other memory": {1, true, func(s *vmm.State) { s.MemoryBytes *= 2 }, "memory"},
		"other vendor": {1, true, func(s *vmm.State) { s.CPU.Vendor[0] ^= 1 }, "CPU model"},
		"other model":  {1, true, func(s *vmm.State) { s.CPU.Model++ }, "CPU model"},
		"more devices": {1, true, func(s *vmm.State) { s.Devices = [][]byte{{1}} }, "devices"},
	} {
		t.Run(name, func(t *testing.T) {
			var s vmm.State
			must(t, s.UnmarshalBinary(state))
			c.change(&s)
			m := newMachine(t, c.vcpus)
			if c.console {
				m.SetConsole(io.Discard)
			}
			must(t, m.MapMemory(-1, true))
			var se *vmm.StateError
			if err := m.Restore(&s); !errors.As(err, &se) || se.Field != c.field {
				t.Errorf("restore: %v, want an error of field %q", err, c.field)
			}
		})
	}
}

// TestDeviceIsReachable has a guest read and write a device's window, and notify its queues, which takes the
// way over an eventfd.
func TestDeviceIsReachable(t *testing.T) {
	m := newMachine(t, 1)
	d := &recorder{wrote: make(chan uint32, 1)}
	must(t, m.AddDevice(d))
	load(t, m, nano.Device)
	select {
	case v := <-d.wrote:
		if v != 0x74726976 { // "virt", little-endian
			t.Errorf("the guest read %#x from the device's first register", v)
		}
	case <-time.After(deadline):
		t.Fatal("the guest did not reach the device")
	}
	// Pause handles every notification before it returns; the guest makes two right after the write.
	for end := time.Now().Add(deadline); m.Notifies(0) < 2 && time.Now().Before(end); {
		must(t, m.Pause())
		must(t, m.Resume())
	}
	if n := m.Notifies(0); n != 2 {
		t.Errorf("%d notifications arrived, want 2", n)
	}
}

// recorder is a virtio device with two queues that records writes to its configuration space.
type recorder struct{ wrote chan uint32 }

func (*recorder) Type() uint32                  { return 4 }
func (*recorder) Features() uint64              { return 0 }
func (*recorder) QueueSizes() []uint16          { return []uint16{8, 8} }
func (*recorder) ReadConfig(_ uint64, p []byte) { clear(p) }
func (d *recorder) WriteConfig(_ uint64, p []byte) {
	d.wrote <- binary.LittleEndian.Uint32(p)
}
func (*recorder) Activate(virtio.Backend) error { return nil }
func (*recorder) Notify(int)                    {}
func (*recorder) Reset()                        {}
func (*recorder) Save() ([]byte, error)         { return nil, nil }
func (*recorder) Restore([]byte) error          { return nil }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func await(t testing.TB, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(deadline):
		t.Fatal("nothing happened in time")
	}
}

func newMachine(t testing.TB, vcpus int) *vmm.Machine {
	t.Helper()
	m, err := vmm.New(vmm.Shape{VCPUs: vcpus, MemoryBytes: nano.MemoryBytes})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return m
}

// newCounter is a machine with a console.
func newCounter(t testing.TB, vcpus int) (*vmm.Machine, *lineBuffer) {
	t.Helper()
	m, out := newMachine(t, vcpus), newLineBuffer()
	m.SetConsole(out)
	return m, out
}

// load maps anonymous memory and starts a program in it.
func load(t testing.TB, m *vmm.Machine, p nano.Program) {
	t.Helper()
	must(t, m.MapMemory(-1, true))
	must(t, p.Load(m))
	must(t, m.Start())
}

func memfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Ftruncate(fd, nano.MemoryBytes))
	return fd
}

func save(t testing.TB, m *vmm.Machine) []byte {
	t.Helper()
	s, err := m.Save()
	must(t, err)
	b, err := s.MarshalBinary()
	must(t, err)
	return b
}

// savedCounter is the memory file and the state of a counter that was stopped somewhere, and the last count
// that it printed completely.
func savedCounter(t testing.TB, vcpus int) (ram int, state []byte, last uint64) {
	t.Helper()
	ram = memfd(t)
	m, out := newCounter(t, vcpus)
	must(t, m.MapMemory(ram, false))
	must(t, nano.Counter.Load(m))
	must(t, m.Start())
	out.awaitLines(t, 5)
	must(t, m.Pause())
	state = save(t, m)
	must(t, m.Close())
	counts := out.counts(t)
	return ram, state, counts[len(counts)-1]
}

func restored(t testing.TB, vcpus, ram int, state []byte) (*vmm.Machine, *lineBuffer) {
	t.Helper()
	m, out := newCounter(t, vcpus)
	must(t, m.MapMemory(ram, true))
	var s vmm.State
	must(t, s.UnmarshalBinary(state))
	must(t, m.Restore(&s))
	return m, out
}

// checkCounts checks that a counter's lines go on by one from first, the first of which may be cut off
// because the line was begun before the machine was saved.
func checkCounts(t testing.TB, counts []uint64, first uint64) {
	t.Helper()
	for i, n := range counts {
		if want := counts[0] + uint64(i); n != want {
			t.Fatalf("line %d has count %d, want %d", i, n, want)
		}
	}
	if counts[0] != first && counts[0] != first+1 {
		t.Fatalf("the first whole line has count %d, want %d or %d", counts[0], first, first+1)
	}
}

// lineBuffer collects a guest's output by lines.
type lineBuffer struct {
	mu   sync.Mutex // guards buf
	more *sync.Cond
	buf  bytes.Buffer
}

func newLineBuffer() *lineBuffer {
	b := new(lineBuffer)
	b.more = sync.NewCond(&b.mu)
	return b
}

func (b *lineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.more.Broadcast()
	return b.buf.Write(p)
}

func (b *lineBuffer) lines() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.buf.Bytes(), []byte{'\n'})
}

func (b *lineBuffer) awaitLines(t testing.TB, n int) {
	t.Helper()
	expired := false
	timer := time.AfterFunc(deadline, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		expired = true
		b.more.Broadcast()
	})
	defer timer.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for bytes.Count(b.buf.Bytes(), []byte{'\n'}) < n {
		if expired {
			t.Fatalf("the guest has not printed %d lines; it printed %q", n, b.buf.Bytes())
		}
		b.more.Wait()
	}
}

// counts parses whole lines of a counter, whose two numbers must agree.
func (b *lineBuffer) counts(t testing.TB) []uint64 {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []uint64
	for line := range strings.Lines(b.buf.String()) {
		var mem, reg uint64
		if len(line) != 18 {
			continue
		}
		if _, err := fmt.Sscanf(line, "%08x %08x\n", &mem, &reg); err != nil || mem != reg {
			t.Fatalf("line %q: memory and register disagree (%v)", line, err)
		}
		out = append(out, mem)
	}
	return out
}
