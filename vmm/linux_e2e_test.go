//go:build e2e

package vmm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/boot"
)

// These tests boot the kernel named by CELLA_GUEST_KERNEL (an uncompressed ELF) with this test binary itself
// as /init, so they need a host whose KVM can run a stock guest, or the lab, and a static binary.

// guestDeadline bounds one wait for the guest; emulated hosts are slow.
const guestDeadline = 120 * time.Second

func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		guestInit()
	}
	os.Exit(m.Run())
}

func TestLinuxPowersOff(t *testing.T) {
	for _, vcpus := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d vCPUs", vcpus), func(t *testing.T) {
			m, c := bootLinux(t, vcpus, "poweroff", -1)
			start(t, m)
			if got := c.await(t, `guest: (\d+) CPUs`); got != strconv.Itoa(vcpus) {
				t.Errorf("the guest has %s CPUs, want %d", got, vcpus)
			}
			awaitExit(t, m, c, PowerOff)
		})
	}
}

func TestLinuxResets(t *testing.T) {
	m, c := bootLinux(t, 1, "reset", -1)
	start(t, m)
	awaitExit(t, m, c, Reset)
}

// TestLinuxGoesOnFromSavedState takes a guest through its encoded state into two machines that share its
// memory copy-on-write. The nonce lives in the guest's memory only, so a guest that rebooted would show another
// one; the ticks go on only if its timers fire.
func TestLinuxGoesOnFromSavedState(t *testing.T) {
	for _, vcpus := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d vCPUs", vcpus), func(t *testing.T) {
			ram := memfd(t)
			m, c := bootLinux(t, vcpus, "tick", ram)
			start(t, m)
			c.await(t, tickPattern(3))
			state := pauseAndSave(t, m)
			before := c.String()
			saved := lastTick(t, before)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				clone, c := newMachine(t, vcpus)
				restoreLinux(t, clone, state, ram)
				c.await(t, tickPattern(saved+5))
				// The guest may have been stopped in the middle of a line: its clone prints the rest.
				if err := consecutive(before + c.String()); err != nil {
					t.Errorf("clone %d: %v; before saving:\n%s\nafter:\n%s", i, err, before, c)
				}
			}
		})
	}
}

func restoreLinux(t *testing.T, m *Machine, state []byte, ram int) {
	t.Helper()
	var s State
	if err := s.UnmarshalBinary(state); err != nil {
		t.Fatal(err)
	}
	if err := m.MapMemory(ram, true); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(&s); err != nil {
		t.Fatal(err)
	}
	start(t, m)
}

func pauseAndSave(t *testing.T, m *Machine) []byte {
	t.Helper()
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	s, err := m.Save()
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// memfd is a file in memory of the size of the guest's RAM.
func memfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, linuxMemory); err != nil {
		t.Fatal(err)
	}
	return fd
}

// tickPattern matches tick n or a later one of as many digits, or of more.
func tickPattern(n int) string {
	s := strconv.Itoa(n)
	var alternatives []string
	for i := range s {
		if s[i] < '9' {
			alternatives = append(alternatives, fmt.Sprintf("%s[%c-9]%s", s[:i], s[i]+1, strings.Repeat("[0-9]", len(s)-i-1)))
		}
	}
	alternatives = append(alternatives, s, "[1-9]"+strings.Repeat("[0-9]", len(s))+"[0-9]*")
	return `tick (` + strings.Join(alternatives, "|") + `)\r?\n`
}

var tickLine = regexp.MustCompile(`guest: nonce ([0-9a-f]{16}) tick (\d+)\r?\n`)

func lastTick(t *testing.T, output string) int {
	t.Helper()
	all := tickLine.FindAllStringSubmatch(output, -1)
	if all == nil {
		t.Fatalf("the guest has not ticked; its console:\n%s", output)
	}
	n, _ := strconv.Atoi(all[len(all)-1][2])
	return n
}

// consecutive checks that a guest's output has one nonce and every tick once, in order.
func consecutive(output string) error {
	all := tickLine.FindAllStringSubmatch(output, -1)
	for i, tick := range all {
		if tick[1] != all[0][1] {
			return fmt.Errorf("nonce %s became %s", all[0][1], tick[1])
		}
		n, err := strconv.Atoi(tick[2])
		if err != nil {
			return err
		}
		if i > 0 && all[i-1][2] != strconv.Itoa(n-1) {
			return fmt.Errorf("tick %s is followed by tick %d", all[i-1][2], n)
		}
	}
	return nil
}

// bootLinux makes a machine with the kernel loaded and the guest told what to do. RAM is a file that it
// shares, or anonymous if ram is negative.
func bootLinux(t *testing.T, vcpus int, task string, ram int) (*Machine, *console) {
	t.Helper()
	path := os.Getenv("CELLA_GUEST_KERNEL")
	if path == "" {
		t.Fatal("CELLA_GUEST_KERNEL is not set: set it to an uncompressed ELF kernel")
	}
	kernel, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	src, err := boot.FileSource(kernel)
	if err != nil {
		t.Fatal(err)
	}
	m, c := newMachine(t, vcpus)
	if err := m.MapMemory(ram, false); err != nil {
		t.Fatal(err)
	}
	img := boot.Image{
		Kernel: src, Initrd: bytes.NewReader(initramfs(t)),
		Cmdline: "quiet console=ttyS0 reboot=k panic=-1 nokaslr mitigations=off pci=off CELLA_TASK=" + task,
	}
	if err := m.Load(img); err != nil {
		t.Fatal(err)
	}
	return m, c
}

const linuxMemory = 256 << 20

func newMachine(t *testing.T, vcpus int) (*Machine, *console) {
	t.Helper()
	m, err := New(Shape{VCPUs: vcpus, MemoryBytes: linuxMemory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	c := newConsole()
	m.SetConsole(c)
	return m, c
}

func start(t *testing.T, m *Machine) {
	t.Helper()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
}

func awaitExit(t *testing.T, m *Machine, c *console, want Reason) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(guestDeadline):
		t.Fatalf("the guest did not stop; its console:\n%s", c)
	}
	if e := m.Exit(); e.Reason != want {
		t.Errorf("exit is %v, want %v; the console:\n%s", e, want, c)
	}
}

// console collects the guest's output and lets a test wait for some of it.
type console struct {
	mu   sync.Mutex // guards buf
	more *sync.Cond
	buf  bytes.Buffer
}

func newConsole() *console {
	c := new(console)
	c.more = sync.NewCond(&c.mu)
	return c
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.more.Broadcast()
	if os.Getenv("CELLA_TEST_CONSOLE") != "" {
		os.Stderr.Write(p)
	}
	return c.buf.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// await waits for output that matches and returns the first group of the last match.
func (c *console) await(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	expired := false
	timer := time.AfterFunc(guestDeadline, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		expired = true
		c.more.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !expired {
		if all := re.FindAllStringSubmatch(c.buf.String(), -1); all != nil {
			return all[len(all)-1][1]
		}
		c.more.Wait()
	}
	t.Fatalf("no output matches %q; the console:\n%s", pattern, c.buf.String())
	return ""
}

// initramfs is a cpio archive (newc format) with this binary as /init.
func initramfs(t *testing.T) []byte {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cpioEntry(&b, "dev", unix.S_IFDIR|0o755, nil)
	cpioEntry(&b, "proc", unix.S_IFDIR|0o755, nil)
	cpioEntry(&b, "init", unix.S_IFREG|0o755, self)
	cpioEntry(&b, "TRAILER!!!", 0, nil)
	return b.Bytes()
}

func cpioEntry(w io.Writer, name string, mode uint32, data []byte) {
	fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	padded := func(head int, s string) {
		io.WriteString(w, s)
		io.WriteString(w, strings.Repeat("\x00", -(head+len(s))&3))
	}
	padded(110, name+"\x00")
	padded(0, string(data))
}

// guestInit is what this binary does as the guest's first process.
func guestInit() {
	fmt.Printf("guest: %d CPUs\n", guestCPUs())
	switch os.Getenv("CELLA_TASK") {
	case "poweroff":
		guestReboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	case "reset":
		guestReboot(unix.LINUX_REBOOT_CMD_RESTART)
	case "tick":
		guestTick()
	}
	fmt.Println("guest: no task")
	select {}
}

func guestCPUs() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return -1
	}
	return set.Count()
}

func guestReboot(cmd int) {
	if err := unix.Reboot(cmd); err != nil {
		fmt.Println("guest: reboot:", err)
	}
	select {}
}

// guestTick prints a number that exists only in this guest's memory, and a count that goes on with its timer.
func guestTick() {
	var nonce [8]byte
	if _, err := unix.Getrandom(nonce[:], 0); err != nil {
		fmt.Println("guest: getrandom:", err)
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	for n := 1; ; n++ {
		<-ticker.C
		fmt.Printf("guest: nonce %x tick %d\n", nonce, n)
	}
}
