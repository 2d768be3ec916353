package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/identity"
)

// Machine is the guest's kernel as the control operations touch it. Its files are opened ahead of time:
// init is on the path of every create.
type Machine struct {
	random *os.File
	// runDir is where the sandbox's name is left for programs that look for it.
	runDir string
	// PowerOff ends the machine; it doesn't return.
	PowerOff func()
}

// OpenMachine readies the kernel's files.
func OpenMachine(powerOff func()) (*Machine, error) {
	random, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open random generator: %w", err)
	}
	m := &Machine{random: random, runDir: "/run/e2b", PowerOff: powerOff}
	if err := os.MkdirAll(m.runDir, 0o755); err != nil {
		return nil, err
	}
	return m, os.WriteFile(filepath.Join(m.runDir, ".E2B_SANDBOX"), []byte("true"), 0o644)
}

// seedBytes is how much entropy an init carries.
const seedBytes = 64

// randPoolInfo is struct rand_pool_info of linux/random.h.
type randPoolInfo struct {
	entropyBits int32
	bufBytes    int32
	buf         [seedBytes]byte
}

// seed credits entropy to the kernel's generator and makes it take effect at once: two clones of one
// snapshot share the generator's state until then. (random(4): RNDADDENTROPY, RNDRESEEDCRNG)
func (m *Machine) seed(entropy []byte) error {
	if len(entropy) != seedBytes {
		return fmt.Errorf("init carries %d bytes of entropy; it takes %d", len(entropy), seedBytes)
	}
	info := randPoolInfo{entropyBits: seedBytes * 8, bufBytes: seedBytes}
	copy(info.buf[:], entropy)
	if err := m.ioctl(unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info))); err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	if err := m.ioctl(unix.RNDRESEEDCRNG, 0); err != nil {
		return fmt.Errorf("reseed random generator: %w", err)
	}
	return nil
}

func (m *Machine) ioctl(req, arg uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, m.random.Fd(), req, arg); errno != 0 {
		return errno
	}
	return nil
}

// setClock steps the wall clock.
func (m *Machine) setClock(unixNano int64) error {
	ts := unix.NsecToTimespec(unixNano)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set clock to %s: %w", time.Unix(0, unixNano).UTC(), err)
	}
	return nil
}

// nameSandbox leaves the sandbox's ids where programs look for them.
func (m *Machine) nameSandbox(id identity.Identity) error {
	for name, value := range map[string]string{".E2B_SANDBOX_ID": id.SandboxID, ".E2B_TEMPLATE_ID": id.TemplateID} {
		if err := os.WriteFile(filepath.Join(m.runDir, name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("name the sandbox: %w", err)
		}
	}
	return nil
}

// dropCaches frees what can be read from the disk again; what isn't written yet stays, so sync first
// (Documentation/admin-guide/sysctl/vm.rst).
func (m *Machine) dropCaches() error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200); err != nil {
		return fmt.Errorf("drop caches: %w", err)
	}
	return nil
}
