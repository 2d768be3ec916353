package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/internal/buildcache"
	"cella.dev/cella/internal/cpio"
	"cella.dev/cella/internal/kmod"
	"cella.dev/cella/lab/inside"
	"cella.dev/cella/lab/proto"
)

// stallLimit is how long, in real time, a lab may go without a sign of life; its init gives one every ten seconds
// of its own time. A guest that spins on PAUSE makes one second take forty (docs/decisions/0008).
const stallLimit = 10 * time.Minute

// environment is what commands in the lab find, before Options.Env.
func (o *Options) environment() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "USER=root", "LOGNAME=root", "LANG=C.UTF-8", "TERM=" + term(),
		// Programs that report figures say by which clock they were taken.
		"CELLA_LAB=1", "CELLA_LAB_CLOCK=" + string(o.Clock), "CELLA_ASSETS=/var/lib/cella/assets",
	}
	return append(env, o.Env...)
}

func term() string {
	if t := os.Getenv("TERM"); t != "" {
		return t
	}
	return "dumb"
}

// Run boots a lab, runs one command in it and ends it. The error is ErrTimeout when the time limit was reached,
// the context's when that ended first, and otherwise says why the lab failed, with the console's last lines;
// a command that fails is no error but a Result.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.defaults(); err != nil {
		return Result{}, err
	}
	cacheDir, im, err := o.images()
	if err != nil {
		return Result{}, err
	}
	f, err := o.files(im, cacheDir)
	if err != nil {
		return Result{}, err
	}
	defer f.close()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, ErrTimeout)
	defer cancel()
	disks, err := f.disks(im)
	if err != nil {
		return Result{}, err
	}
	m, err := start(o.args(im, disks), f)
	if err != nil {
		return Result{}, err
	}
	s := session{o: &o, m: m, conn: proto.NewConn(m.port)}
	result, err := s.run(ctx)
	m.kill()
	text := m.consoleText()
	if o.Console != nil {
		o.Console.Write(text)
	}
	if err != nil && ctx.Err() == nil || errors.Is(err, ErrTimeout) {
		err = withConsole(err, text)
	}
	return result, err
}

func (o *Options) images() (string, Images, error) {
	dir := o.CacheDir
	if dir == "" {
		var err error
		if dir, err = buildcache.DefaultDir(); err != nil {
			return "", Images{}, err
		}
	}
	im, err := Find(dir)
	return dir, im, err
}

// files makes the files that QEMU inherits.
func (o *Options) files(im Images, dir string) (f files, err error) {
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	bin := o.BinDir
	if bin == "" {
		exe, err := os.Executable()
		if err != nil {
			return f, err
		}
		bin = filepath.Dir(exe)
	}
	if f.console, err = memFile("console"); err != nil {
		return f, err
	}
	if f.initrd, err = memFile("initrd"); err != nil {
		return f, err
	}
	if err := buildInitrd(f.initrd, filepath.Join(bin, "cella"), im.Modules); err != nil {
		return f, err
	}
	in := o.In
	if agent := filepath.Join(bin, "cella-agent"); exists(agent) {
		in = append([]Copy{{From: agent, To: "/usr/local/bin/cella-agent"}}, in...)
	}
	if len(in) == 0 {
		return f, nil
	}
	// Without a name from the start, so there is nothing to remove.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return f, fmt.Errorf("make a temporary file in %s: %w", dir, err)
	}
	f.in = os.NewFile(uintptr(fd), "in")
	if err := writeIn(f.in, in); err != nil {
		return f, err
	}
	return f, padDisk(f.in)
}

// diskUnit is what the sizes of the lab's disks are multiples of: persistent memory comes in such pieces.
const diskUnit = 2 << 20

// padDisk rounds a file up to what a disk of the lab must be.
func padDisk(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return f.Truncate((st.Size() + diskUnit - 1) / diskUnit * diskUnit)
}

// disks lists the lab's disks in the order of their numbers in the lab: root, state, and files to copy in.
func (f *files) disks(im Images) ([]disk, error) {
	disks := []disk{{path: im.Root}, {path: im.State}}
	if f.in != nil {
		disks = append(disks, disk{path: fmt.Sprintf("/proc/self/fd/%d", f.in.Fd())})
	}
	for i := range disks {
		st, err := os.Stat(disks[i].path)
		if err != nil {
			return nil, fmt.Errorf("look at the lab's disk: %w", err)
		}
		disks[i].size = st.Size()
	}
	if f.in != nil {
		disks[2].path = fd(inFD)
	}
	return disks, nil
}

func (f *files) close() {
	for _, file := range []*os.File{f.console, f.initrd, f.in} {
		if file != nil {
			file.Close()
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func memFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("cella-lab-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a memory file: %w", err)
	}
	// The console is written by the kernel (through QEMU) and by QEMU itself, neither over the other.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		return nil, fmt.Errorf("make a memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// buildInitrd writes the lab's initramfs: this binary as its init, and the modules it loads.
func buildInitrd(w io.Writer, binary, modulesDir string) error {
	c := cpio.NewWriter(w)
	for _, dir := range []string{"dev", "proc", "sys", "root", "modules"} {
		c.Dir(dir, 0o755)
	}
	c.Char("dev/console", 0o600, 5, 1)
	if err := c.CopyFile(inside.Path, 0o755, binary); err != nil {
		return fmt.Errorf("put cella into the lab: %w: run `make build`", err)
	}
	if err := kmod.Pack(c, modulesDir); err != nil {
		return fmt.Errorf("put modules into the lab: %w", err)
	}
	return c.Close()
}

// consoleText is what the kernel, the lab's init and QEMU itself printed.
func (m *machine) consoleText() []byte {
	st, err := m.console.Stat()
	if err != nil {
		return nil
	}
	text := make([]byte, st.Size())
	n, _ := m.console.ReadAt(text, 0) // A short read leaves what there is.
	return bytes.ReplaceAll(text[:n], []byte("\r"), nil)
}

// consoleLines is how many of the console's lines an error shows.
const consoleLines = 30

// withConsole adds the console's last lines to an error, or those from the kernel's first complaint on: what came
// before a panic tells more than the end of its register dump.
func withConsole(err error, console []byte) error {
	lines := strings.Split(strings.TrimSpace(string(console)), "\n")
	from := max(0, len(lines)-consoleLines)
	if i := slices.IndexFunc(lines, isComplaint); i >= 0 {
		from = min(from, max(0, i-5))
	}
	lines = lines[from:min(len(lines), from+consoleLines)]
	return fmt.Errorf("%w; from the console:\n  %s", err, strings.Join(lines, "\n  "))
}

func isComplaint(line string) bool {
	return strings.Contains(line, "Kernel panic") || strings.Contains(line, "Oops") || strings.Contains(line, "BUG:")
}

// startRequest is what the lab is told to do.
func (o *Options) startRequest() proto.StartRequest {
	req := proto.StartRequest{
		Args: o.Command, Env: o.environment(), Dir: "/root", Stdin: o.Stdin != nil, Terminal: o.Terminal,
		UnixNano: time.Now().UnixNano(),
	}
	for _, c := range o.Out {
		req.Out = append(req.Out, c.From)
	}
	return req
}

func decodeExit(payload []byte) (Result, error) {
	var st proto.ExitStatus
	if err := json.Unmarshal(payload, &st); err != nil {
		return Result{}, fmt.Errorf("read the lab's exit status: %w", err)
	}
	return Result{ExitCode: st.Code, Boot: time.Duration(st.BootNano), Run: time.Duration(st.RunNano)}, nil
}
