package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/blockcow"
	"cella.dev/cella/guest/wire"
	"cella.dev/cella/internal/agentrpc"
	"cella.dev/cella/memsnap"
	"cella.dev/cella/netvs"
	"cella.dev/cella/node/worker"
)

// guestCmdline is the kernel command line of guests: no console (each byte of it would be an exit to
// the VMM), none of the probing for hardware that the machine does not have, and an end instead of a hang
// on a panic. A reset goes by the keyboard controller (reboot=k): left to itself, the kernel jumps to a BIOS that
// is not there and spins in real mode until the sandbox's end of life.
const (
	guestCmdline   = "quiet loglevel=1 8250.nr_uarts=0 " + commonCmdline
	consoleCmdline = "console=ttyS0 " + commonCmdline
	commonCmdline  = "panic=-1 reboot=k pci=off random.trust_cpu=on cryptomgr.notests cella.root=/dev/vda"
)

// networkCmdline tells the guest how it is connected.
func networkCmdline() string {
	return fmt.Sprintf(" cella.net=%v,%v", netvs.GuestAddr, netvs.GatewayAddr)
}

// guestMTU is what every path carries.
const guestMTU = 1500

// TemplateSpec says what to build a template from.
type TemplateSpec struct {
	Alias string
	// Kernel is an uncompressed ELF vmlinux, Initrd a cpio archive with the agent as /init, Rootfs an ext4 image.
	Kernel, Initrd, Rootfs string
	CPUCount               int // default 1
	MemoryMB               int // default 256
	// WarmUp are commands that run before the snapshot, so that the files they use are in its page cache.
	// Their failure fails the build.
	WarmUp []string
	// Console, if not nil, gets the guest's serial output. It makes the boot much slower.
	Console *os.File
	// Progress, if not nil, is told of each step as it begins.
	Progress func(step string)
}

// BuildTemplate boots a guest, warms it up, snapshots it and publishes it under its alias, in place of an
// older template of that name. A build that fails leaves nothing.
func (n *Node) BuildTemplate(ctx context.Context, spec TemplateSpec) (Template, error) {
	if err := spec.check(); err != nil {
		return Template{}, err
	}
	if err := n.enter(); err != nil {
		return Template{}, err
	}
	defer n.busy.Done()
	dir, err := os.MkdirTemp(n.templatesDir(), buildPrefix)
	if err != nil {
		return Template{}, fmt.Errorf("build template: %w", err)
	}
	defer os.RemoveAll(dir)
	lock, err := flock(dir) // tells other processes that this build is alive
	if err != nil {
		return Template{}, fmt.Errorf("build template: %w", err)
	}
	defer lock.Close()
	b := builder{node: n, spec: spec, dir: dir}
	if err := b.run(ctx); err != nil {
		return Template{}, fmt.Errorf("build template %s: %w", spec.Alias, err)
	}
	t, err := n.publish(dir, spec.Alias)
	if err != nil {
		return Template{}, fmt.Errorf("publish template %s: %w", spec.Alias, err)
	}
	return t.Template, nil
}

func (s *TemplateSpec) check() error {
	if s.CPUCount == 0 {
		s.CPUCount = 1
	}
	if s.MemoryMB == 0 {
		s.MemoryMB = 256
	}
	switch {
	case !validAlias(s.Alias):
		return fmt.Errorf("template name %q: use 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", s.Alias)
	case s.CPUCount < 1 || s.CPUCount > 32:
		return fmt.Errorf("template %s: %d vCPUs is out of range 1 to 32", s.Alias, s.CPUCount)
	case s.MemoryMB < 128 || s.MemoryMB > 64<<10:
		return fmt.Errorf("template %s: %d MiB of memory is out of range 128 to 65536", s.Alias, s.MemoryMB)
	}
	if s.Progress == nil {
		s.Progress = func(string) {}
	}
	return nil
}

// builder is one build in its own directory.
type builder struct {
	node *Node
	spec TemplateSpec
	dir  string
}

func (b *builder) run(ctx context.Context) error {
	b.spec.Progress("copying kernel and disk")
	disk, err := b.importFiles()
	if err != nil {
		return err
	}
	defer disk.Close()
	socket := filepath.Join(b.node.opts.Run, "build-"+randomID(8)+".sock")
	listener, err := listenVsock(socket)
	if err != nil {
		return err
	}
	defer os.Remove(socket)
	defer listener.Close()
	t := &template{dir: b.dir, Template: Template{
		ID: randomID(20), BuildID: randomUUID(), Alias: b.spec.Alias, CPUCount: b.spec.CPUCount, MemoryMB: b.spec.MemoryMB,
		DefaultUser: "user", DefaultWorkdir: "/home/user",
		// Every template has a card, so that its sandboxes can be connected wherever there is a network.
		Card: &worker.Card{MAC: netvs.GuestMAC.String(), MTU: guestMTU},
	}}
	w, err := worker.Start(t.shape())
	if err != nil {
		return err
	}
	defer func() { w.Kill(); <-w.Done() }()
	b.spec.Progress("booting the guest")
	// While it is built the guest reaches nothing: its card is connected to nothing.
	files := worker.BootFiles{Disk: disk, Listener: listener, Console: b.spec.Console, Network: worker.Network{Card: t.Card}}
	if err := bootTemplate(ctx, w, b.dir, files); err != nil {
		return err
	}
	if err := b.warmUp(ctx, w, t, socket); err != nil {
		return err
	}
	b.spec.Progress("saving the snapshot")
	if err := b.save(ctx, w, socket, disk); err != nil {
		return err
	}
	info, err := disk.Stat()
	if err != nil {
		return err
	}
	t.DiskSizeMB = int(info.Size() >> 20)
	t.CreatedAt = time.Now().UTC()
	if err := writeManifest(b.dir, t.Template); err != nil {
		return err
	}
	b.spec.Progress("recording the working set")
	return b.record(ctx)
}

// record restores the finished snapshot once and keeps which pages it touches up to the end of a first command.
func (b *builder) record(ctx context.Context) error {
	t, err := openTemplate(b.dir)
	if err != nil {
		return err
	}
	defer t.close()
	disk, err := b.node.disks.Clone(t.disk)
	if err != nil {
		return err
	}
	defer disk.Close()
	s := &sandbox{Sandbox: Sandbox{ID: "recorder"}, socket: filepath.Join(b.node.opts.Run, "record-"+randomID(8)+".sock")}
	listener, err := listenVsock(s.socket)
	if err != nil {
		return err
	}
	defer os.Remove(s.socket)
	defer listener.Close()
	if s.worker, err = worker.Start(t.shape()); err != nil {
		return err
	}
	defer func() { s.worker.Kill(); <-s.worker.Done() }()
	files := worker.RestoreFiles{State: t.snapshot.State, Memory: t.snapshot.Memory, Disk: disk, Listener: listener,
		Network: worker.Network{Card: t.Card}}
	if err := s.worker.RestoreRecorded(ctx, files); err != nil {
		return err
	}
	if err := b.node.warm(ctx, s, t); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(b.dir, workingSetFile), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := s.worker.Touched(ctx, out); err != nil {
		return err
	}
	return errors.Join(out.Sync(), syncDir(b.dir))
}

// importFiles brings kernel, initrd and disk into the build directory and returns the disk, open for writing.
func (b *builder) importFiles() (*os.File, error) {
	for _, f := range [][2]string{{b.spec.Kernel, kernelFile}, {b.spec.Initrd, initrdFile}, {b.spec.Rootfs, diskFile}} {
		src, err := os.Open(f[0])
		if err != nil {
			return nil, fmt.Errorf("%w (cella setup makes the guest's files)", err)
		}
		dst, err := b.node.disks.Import(src)
		src.Close()
		if err != nil {
			return nil, err
		}
		err = blockcow.Publish(dst, filepath.Join(b.dir, f[1]))
		dst.Close()
		if err != nil {
			return nil, err
		}
	}
	return os.OpenFile(filepath.Join(b.dir, diskFile), os.O_RDWR, 0)
}

// bootTemplate starts the kernel of a template's directory with the other files given.
func bootTemplate(ctx context.Context, w *worker.Worker, dir string, files worker.BootFiles) (err error) {
	if files.Kernel, err = os.Open(filepath.Join(dir, kernelFile)); err != nil {
		return err
	}
	defer files.Kernel.Close()
	if files.Initrd, err = os.Open(filepath.Join(dir, initrdFile)); err != nil {
		return err
	}
	defer files.Initrd.Close()
	cmdline := guestCmdline
	if files.Console != nil {
		cmdline = consoleCmdline
	}
	return w.Boot(ctx, files, cmdline+networkCmdline())
}

// warmUp waits for the agent and runs the warm-up commands as the default user.
func (b *builder) warmUp(ctx context.Context, w *worker.Worker, t *template, socket string) error {
	s := &sandbox{Sandbox: Sandbox{ID: "template"}, worker: w, socket: socket}
	reply, err := controlBooting(ctx, socket, wire.ControlRequest{Op: wire.OpInit, Init: newInit(s, t, nil)})
	if err != nil {
		return s.orExit(err)
	}
	t.AgentVersion = reply.Version
	for _, cmd := range b.spec.WarmUp {
		b.spec.Progress("warming up: " + cmd)
		conn, err := s.dialPort(ctx, wire.PortAgent, nil)
		if err != nil {
			return s.orExit(err)
		}
		code, err := agentrpc.Run(ctx, conn, agentrpc.Shell(cmd), agentrpc.Output{Stdout: io.Discard, Stderr: io.Discard})
		conn.Close()
		if err != nil {
			return fmt.Errorf("warm up with %q: %w", cmd, s.orExit(err))
		}
		if code != 0 {
			return fmt.Errorf("warm up with %q: exit code %d", cmd, code)
		}
	}
	return nil
}

// orExit prefers the reason that the machine ended to an error of talking to it.
func (s *sandbox) orExit(err error) error {
	select {
	case <-s.worker.Done():
		return errors.Join(s.worker.Err(), err)
	default:
		return err
	}
}

// save freezes the guest and writes its state, memory and disk.
func (b *builder) save(ctx context.Context, w *worker.Worker, socket string, disk *os.File) error {
	if _, err := control(ctx, socket, wire.ControlRequest{Op: wire.OpFreeze}); err != nil {
		return err
	}
	state, err := os.OpenFile(filepath.Join(b.dir, memsnap.StateFile), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer state.Close()
	memory, err := os.OpenFile(filepath.Join(b.dir, memsnap.MemoryName(0)), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer memory.Close()
	info, err := w.Save(ctx, state, memory)
	if err != nil {
		return err
	}
	if err := disk.Sync(); err != nil {
		return fmt.Errorf("sync disk: %w", err)
	}
	if err := memsnap.WriteManifest(b.dir, memsnap.Manifest{Memory: info}); err != nil {
		return err
	}
	return memsnap.Sync(b.dir)
}

func writeManifest(dir string, t Template) error {
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, manifestFile), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("write template manifest: %w", err)
	}
	return errors.Join(f.Sync(), syncDir(dir))
}

// publish moves a finished build to its alias, at one instant, and puts it to use.
func (n *Node) publish(dir, alias string) (*template, error) {
	n.publishing.Lock()
	defer n.publishing.Unlock()
	final := filepath.Join(n.templatesDir(), alias)
	err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(dir, final) // the first of its name
	}
	if err != nil {
		return nil, err
	}
	if err := syncDir(n.templatesDir()); err != nil {
		return nil, err
	}
	t, err := openTemplate(final)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	if n.closed { // Close has seen the table already; the next node finds the template on disk
		n.mu.Unlock()
		t.close()
		return t, nil
	}
	t.pool = n.startPool(t)
	old := n.templates[alias]
	n.templates[alias] = t
	n.mu.Unlock()
	if old != nil {
		old.pool.close()
		old.close()
	}
	return t, nil
}
