//go:build e2e

package linuxdriver

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm"
	"cella.dev/cella/vmm/boot"
	"cella.dev/cella/vmm/virtio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

const (
	memoryBytes = 256 << 20
	// patience bounds one wait for the guest; emulated hosts are slow.
	patience = 60 * time.Second
)

// machine is a virtual machine with its console.
type machine struct {
	*vmm.Machine
	tb  testing.TB
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
	// more has a token when the console has said something.
	more chan struct{}
}

// Write implements the console.
func (m *machine) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buf.Write(p)
	select {
	case m.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func newMachine(t *testing.T, devices ...virtio.Device) *machine {
	t.Helper()
	v, err := vmm.New(vmm.Shape{VCPUs: 1, MemoryBytes: memoryBytes})
	virtiotest.Must(t, err)
	m := &machine{Machine: v, tb: t, more: make(chan struct{}, 1)}
	t.Cleanup(func() { v.Close() })
	v.SetConsole(m)
	for _, d := range devices {
		virtiotest.Must(t, v.AddDevice(d))
	}
	return m
}

// boot starts a kernel with this binary as its init. RAM is a file shared with the machine, or anonymous if ram
// is negative.
func (m *machine) boot(task string, ram int) *machine {
	m.tb.Helper()
	kernel, err := os.Open(os.Getenv("CELLA_GUEST_KERNEL"))
	virtiotest.Must(m.tb, err)
	defer kernel.Close()
	src, err := boot.FileSource(kernel)
	virtiotest.Must(m.tb, err)
	virtiotest.Must(m.tb, m.MapMemory(ram, false))
	virtiotest.Must(m.tb, m.Load(boot.Image{Kernel: src, Initrd: bytes.NewReader(initramfs(m.tb)),
		Cmdline: "quiet console=ttyS0 reboot=k panic=-1 nokaslr mitigations=off pci=off CELLA_TASK=" + task}))
	virtiotest.Must(m.tb, m.Start())
	return m
}

// await waits until the console has said what matches pattern, and returns the groups.
func (m *machine) await(pattern string) []string {
	m.tb.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		m.mu.Lock()
		found := re.FindStringSubmatch(m.buf.String())
		said := m.buf.String()
		m.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-m.more:
		case <-timeout:
			m.tb.Fatalf("no output matches %q; the console:\n%s", pattern, said)
		}
	}
}

func initramfs(tb testing.TB) []byte {
	tb.Helper()
	var b bytes.Buffer
	add := func(name string, mode uint32, path string) {
		var data []byte
		if path != "" {
			var err error
			data, err = os.ReadFile(path)
			virtiotest.Must(tb, err)
		}
		cpioEntry(&b, name, mode, data)
	}
	for _, dir := range []string{"dev", "proc", "sys", "modules"} {
		add(dir, unix.S_IFDIR|0o755, "")
	}
	add("init", unix.S_IFREG|0o755, "/proc/self/exe")
	modules, err := filepath.Glob(filepath.Join(os.Getenv("CELLA_GUEST_MODULES"), "*"))
	virtiotest.Must(tb, err)
	for _, path := range modules {
		add("modules/"+filepath.Base(path), unix.S_IFREG|0o644, path)
	}
	add("TRAILER!!!", 0, "")
	return b.Bytes()
}

// cpioEntry writes one file in the newc format.
func cpioEntry(w io.Writer, name string, mode uint32, data []byte) {
	fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	pad := func(n int) { io.WriteString(w, strings.Repeat("\x00", -n&3)) }
	io.WriteString(w, name+"\x00")
	pad(110 + len(name) + 1)
	w.Write(data)
	pad(len(data))
}

// memfd is a file in memory of the size of the guest's RAM.
func memfd(tb testing.TB) int {
	tb.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	virtiotest.Must(tb, err)
	tb.Cleanup(func() { unix.Close(fd) })
	virtiotest.Must(tb, unix.Ftruncate(fd, memoryBytes))
	return fd
}

// save pauses the machine and returns its encoded state.
func (m *machine) save() []byte {
	m.tb.Helper()
	virtiotest.Must(m.tb, m.Pause())
	s, err := m.Save()
	virtiotest.Must(m.tb, err)
	b, err := s.MarshalBinary()
	virtiotest.Must(m.tb, err)
	return b
}

// restore starts a copy-on-write clone.
func (m *machine) restore(state []byte, ram int) *machine {
	m.tb.Helper()
	var s vmm.State
	virtiotest.Must(m.tb, s.UnmarshalBinary(state))
	virtiotest.Must(m.tb, m.MapMemory(ram, true))
	virtiotest.Must(m.tb, m.Restore(&s))
	virtiotest.Must(m.tb, m.Start())
	return m
}

// listen is a unix socket for a socket device to serve.
func listen(tb testing.TB) *net.UnixListener {
	tb.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(tb.TempDir(), "v"), Net: "unix"})
	virtiotest.Must(tb, err)
	tb.Cleanup(func() { l.Close() })
	return l
}
