package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/vsock"

	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/guest/wire"
	"cella.dev/cella/reports"
)

// DefaultAppend is the guest kernel's command line under QEMU: that of cella's own guests, and no KASLR, with
// which a stock kernel once hung under a newer QEMU.
const DefaultAppend = "quiet loglevel=1 8250.nr_uarts=0 panic=-1 reboot=t nokaslr i8042.noaux i8042.nomux i8042.nopnp " +
	"i8042.dumbkbd pci=off random.trust_cpu=on cryptomgr.notests cella.root=/dev/vda"

// QEMU is the peer that cold-boots a microVM of the same kernel, initramfs and root, up to the same agent,
// with QEMU's fastest machine.
type QEMU struct {
	// Kernel is a bzImage, Initrd the initramfs with the agent, Disk an ext4 image that stays unchanged.
	Kernel, Initrd, Disk string
	// Append is the kernel's command line.
	Append    string
	MemoryMiB int
	// Console is a file for the guest's console, "" for none, which is faster.
	Console string
}

// Name implements Arm.
func (q *QEMU) Name() string { return ArmQEMU }

const qemuProgram = "qemu-system-x86_64"

// Work implements Arm.
func (q *QEMU) Work(_ context.Context, scenario string) (Work, error) {
	if _, err := exec.LookPath(qemuProgram); err != nil {
		return nil, unavailable("QEMU is not installed: apt-get install qemu-system-x86")
	}
	for _, f := range []struct{ flag, path string }{{"--kernel", q.Kernel}, {"--initrd", q.Initrd}, {"--disk", q.Disk}} {
		if f.path == "" {
			return nil, unavailable("nothing to boot; give %s", f.flag)
		}
		if _, err := os.Stat(f.path); err != nil {
			return nil, unavailable("%s: %v", f.flag, err)
		}
	}
	for _, device := range []string{"/dev/kvm", "/dev/vhost-vsock"} {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return nil, unavailable("%v; try modprobe kvm vhost_vsock", err)
		}
		f.Close()
	}
	w := &qemuWork{qemu: q, running: map[int]bool{}}
	switch scenario {
	case ColdBoot, Density:
		w.do = w.coldBoot
	case CreateExec:
		w.do = w.createExec
	default:
		return nil, unavailable("QEMU alone has no %s", scenario)
	}
	return w, nil
}

// qemuWork boots machines.
type qemuWork struct {
	qemu    *QEMU
	do      func(ctx context.Context) (Sample, error)
	mu      sync.Mutex // guards running
	running map[int]bool
}

func (w *qemuWork) Do(ctx context.Context) (Sample, error) { return w.do(ctx) }
func (w *qemuWork) Variant() string                        { return "cold boot" }
func (w *qemuWork) Close() error                           { return nil }

// Processes implements processes.
func (w *qemuWork) Processes() ([]int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var pids []int
	for pid := range w.running {
		pids = append(pids, pid)
	}
	return pids, nil
}

// coldBoot is start of QEMU → the agent's first answer.
func (w *qemuWork) coldBoot(ctx context.Context) (Sample, error) {
	_, sample, err := w.boot(ctx)
	return sample, err
}

// createExec goes on to the exit code of a command run through the agent.
func (w *qemuWork) createExec(ctx context.Context) (Sample, error) {
	cid, sample, err := w.boot(ctx)
	if err != nil {
		return sample, err
	}
	agent := &Server{Client: e2b.New(e2b.Options{URL: "http://agent", Dial: func(context.Context, string, string) (net.Conn, error) {
		return vsock.Dial(cid, wire.PortAgent, nil)
	}})}
	took, finish, err := agent.echo(ctx, &e2b.Sandbox{ID: qemuSandbox})
	if err != nil {
		return sample, err
	}
	sample.Phases = []reports.PhaseSample{{Name: "boot", Duration: sample.Total}, {Name: "exec", Duration: took}}
	sample.Total += took
	kill := sample.Release
	sample.Release = func() error {
		finish()
		agent.Client.Close()
		return kill()
	}
	return sample, nil
}

const qemuSandbox = "qemu-peer"

// boot starts a machine and waits for its agent's answer to the handshake. The sample's Release ends it,
// with an error too.
func (w *qemuWork) boot(ctx context.Context) (cid uint32, sample Sample, err error) {
	cid = randomCID()
	var stderr bytes.Buffer
	cmd := exec.Command(qemuProgram, w.qemu.args(cid)...)
	cmd.Stderr = &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, Sample{}, fmt.Errorf("start QEMU: %w", err)
	}
	w.mu.Lock()
	w.running[cmd.Process.Pid] = true
	w.mu.Unlock()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	sample.Release = func() error {
		err := cmd.Process.Kill()
		<-exited
		exited <- nil // Release may be called again
		w.mu.Lock()
		delete(w.running, cmd.Process.Pid)
		w.mu.Unlock()
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	if err := handshake(ctx, cid, exited); err != nil {
		return 0, sample, fmt.Errorf("boot under QEMU: %w: %s", err, lastLine(stderr.Bytes()))
	}
	sample.Total = time.Since(start)
	return cid, sample, nil
}

func (q *QEMU) args(cid uint32) []string {
	machine, console, appended := "microvm,acpi=on,pit=off,pic=off,rtc=on,auto-kernel-cmdline=off", "null", q.Append
	if q.Console == "" {
		machine += ",isa-serial=off"
	} else {
		console, appended = "file:"+q.Console, "console=ttyS0 "+strings.NewReplacer("quiet ", "", "loglevel=1 ", "", "8250.nr_uarts=0 ", "").Replace(appended)
	}
	return []string{
		// qboot loads the kernel at once; the default firmware of a machine with ACPI tables is SeaBIOS.
		"-M", machine, "-bios", "qboot.rom", "-accel", "kvm", "-cpu", "host", "-smp", "1", "-m", fmt.Sprint(q.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", console, "-no-reboot",
		"-kernel", q.Kernel, "-initrd", q.Initrd, "-append", appended,
		// snapshot=on puts a copy-on-write overlay over the image, in a temporary file.
		"-drive", "id=root,if=none,format=raw,snapshot=on,file=" + q.Disk,
		"-device", "virtio-blk-device,drive=root",
		"-device", "virtio-rng-device",
		"-device", fmt.Sprintf("vhost-vsock-device,guest-cid=%d", cid),
	}
}

// randomCID is a vsock address of a guest: above the reserved ones, unlikely to be in use.
func randomCID() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return binary.LittleEndian.Uint32(b[:])&0x3fffffff | 0x10000
}

// dialEvery is how often a connection to an agent that does not listen yet is tried again.
const dialEvery = 2 * time.Millisecond

// handshake tries to connect until the agent listens, and then asks it to take up its identity. A QEMU that
// has exited ends it.
func handshake(ctx context.Context, cid uint32, exited chan error) error {
	ticker := time.NewTicker(dialEvery)
	defer ticker.Stop()
	for {
		conn, err := vsock.Dial(cid, wire.PortControl, nil)
		if err == nil {
			defer conn.Close()
			return initAgent(ctx, conn)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent never listened (%w): %w", err, ctx.Err())
		case err := <-exited:
			exited <- err
			return fmt.Errorf("QEMU ended: %v", err)
		case <-ticker.C:
		}
	}
}

// maxReply bounds what a guest may answer.
const maxReply = 64 << 10

func initAgent(ctx context.Context, conn net.Conn) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return fmt.Errorf("set the handshake's deadline: %w", err)
		}
	}
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // never fails (Go 1.24)
	request, err := json.Marshal(wire.ControlRequest{Op: wire.OpInit, Init: &wire.Init{
		UnixNano: time.Now().UnixNano(), Entropy: entropy, Generation: "1", SandboxID: qemuSandbox, TemplateID: "base",
		DefaultUser: "user",
	}})
	if err != nil {
		return fmt.Errorf("encode the handshake: %w", err)
	}
	if _, err := conn.Write(append(request, '\n')); err != nil {
		return fmt.Errorf("send the handshake: %w", err)
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxReply)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the handshake's answer: %w", err)
	}
	var reply wire.ControlReply
	if err := json.Unmarshal(line, &reply); err != nil {
		return fmt.Errorf("decode the handshake's answer: %w", err)
	}
	if !reply.OK {
		return fmt.Errorf("the agent refused the handshake: %s", reply.Error)
	}
	return nil
}
