package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cella.dev/cella/lab/inside"
	"cella.dev/cella/lab/proto"
)

// kernelArgs are for the lab's own kernel. See docs/decisions for what each buys.
const kernelArgs = "console=ttyS0 panic=-1 quiet mitigations=off kvm.halt_poll_ns=0 cpuidle.off=1 tsc=reliable clocksource=tsc nokaslr " +
	"audit=0 cryptomgr.notests random.trust_cpu=on"

// machine is one QEMU process with the files it was started with. QEMU gets descriptors instead of paths, so
// that nothing is left in the filesystem however either process ends.
type machine struct {
	cmd     *exec.Cmd
	port    *os.File // our end of the control port
	console *os.File // what the kernel printed
	done    chan struct{}
	err     error // how QEMU ended; set before done is closed
}

// The numbers that files have in QEMU.
const (
	portFD = iota + 3
	consoleFD
	initrdFD
	inFD
)

// files are what QEMU inherits.
type files struct {
	port, console, initrd, in *os.File // in may be nil
}

// args is QEMU's command line for descriptors numbered as start hands them over.
func (o *Options) args(im Images, disks []disk) []string {
	a := []string{
		"-name", "cella-lab", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "q35,hpet=off,vmport=off,nvdimm=on",
		// thread=single: code patching in the lab's kernel is not safe in multi-threaded emulation.
		"-accel", "tcg,thread=single,tb-size=4096",
		// No five-level paging: it only makes the nested walk longer.
		"-cpu", "max,+svm,+npt,la57=off",
		"-smp", fmt.Sprint(o.CPUs), "-m", fmt.Sprintf("%dM,slots=%d,maxmem=%dM", o.MemoryMiB, len(disks), o.MemoryMiB+128<<10),
		"-kernel", im.Vmlinux, "-initrd", fd(initrdFD), "-append", kernelArgs + fmt.Sprintf(" rdinit=%s %s=%d", inside.Path, inside.DisksVariable, len(disks)),
		"-chardev", fmt.Sprintf("file,id=console,append=on,path=%s", fd(consoleFD)), "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD),
		"-device", "virtserialport,chardev=port,name=" + proto.Port,
		"-device", "virtio-rng-pci",
		"-netdev", o.netdev(), "-device", "virtio-net-pci,netdev=net,romfile=",
	}
	if o.Clock == Instruction {
		a = append(a, "-icount", "shift=1,sleep=off")
	}
	for i, d := range disks {
		a = append(a, d.args(i)...)
	}
	return a
}

func fd(n int) string { return fmt.Sprintf("/proc/self/fd/%d", n) }

// disk is an image file that the lab sees as persistent memory, /dev/pmemN: reading and writing it takes
// instructions and nothing else. A disk with requests and interrupts would let the machine's own I/O times into the
// lab, and on the instruction clock each wait for one would count as however much time the lab has to skip.
type disk struct {
	path string
	size int64
}

// args maps the image privately, so that every lab starts with the same content and what it writes is memory.
func (d disk) args(n int) []string {
	id := fmt.Sprintf("disk%d", n)
	return []string{
		"-object", fmt.Sprintf("memory-backend-file,id=%s,mem-path=%s,size=%d,share=off,reserve=off", id, strings.ReplaceAll(d.path, ",", ",,"), d.size),
		"-device", fmt.Sprintf("nvdimm,memdev=%s,id=nv%d", id, n),
	}
}

func (o *Options) netdev() string {
	var b strings.Builder
	b.WriteString("user,id=net")
	if !o.Internet {
		b.WriteString(",restrict=on")
	}
	for _, f := range o.Forward {
		fmt.Fprintf(&b, ",hostfwd=tcp:127.0.0.1:%d-:%d", f.Host, f.Lab)
	}
	return b.String()
}

// start runs QEMU. The kernel kills it when this process dies, in whatever way.
func start(args []string, f files) (*machine, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	f.port = theirs
	defer theirs.Close()
	m := &machine{port: ours, console: f.console, done: make(chan struct{})}
	m.cmd = exec.Command("qemu-system-x86_64", args...)
	m.cmd.ExtraFiles = []*os.File{f.port, f.console, f.initrd}
	if f.in != nil {
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, f.in)
	}
	// QEMU's own complaints go where the kernel's do: they are read together when something went wrong.
	m.cmd.Stdout, m.cmd.Stderr = f.console, f.console
	// A group of its own, so that Ctrl-C reaches us alone and the end is orderly. Traced until it is corrected.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL, Ptrace: true}
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that forked ends, so that thread must live on; and it
		// alone may change the traced process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		if err == nil {
			if err = letGo(m.cmd.Process.Pid, f.console); err != nil {
				m.cmd.Process.Kill() // Fails only if it has already ended.
				m.cmd.Wait()         // The reason is known.
			}
		}
		started <- err
		if err == nil {
			m.err = m.cmd.Wait()
			close(m.done)
		}
	}()
	if err := <-started; err != nil {
		ours.Close()
		return nil, fmt.Errorf("start the lab's emulator: %w: run `cella setup` (or `make setup`)", err)
	}
	return m, nil
}

// kill ends QEMU and waits until it is gone.
func (m *machine) kill() {
	m.cmd.Process.Kill() // Fails only if it has already ended.
	<-m.done
	m.port.Close()
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the lab's control socket: %w", err)
	}
	// Non-blocking before NewFile, so that reads are given up when the file is closed.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("make the lab's control socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "lab"), os.NewFile(uintptr(fds[1]), "lab-port"), nil
}
