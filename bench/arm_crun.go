package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Crun is the peer that starts an OCI container of the base template's root: what a host gives up isolation
// for. Nothing but the runtime is measured: no image, no engine, no seccomp profile.
type Crun struct {
	// Rootfs is the directory of the root. It is mounted read-only, with tmpfs on /tmp and /run.
	Rootfs string
	// Program is the runtime; "crun" if empty.
	Program string
}

// Name implements Arm.
func (c *Crun) Name() string { return ArmCrun }

// crunVariants are tried in order. Where there is no cgroup tree to write to, or no root to pivot from (an
// initramfs), the runtime can do without; the report then says so.
var crunVariants = [][]string{{}, {"--cgroup-manager=disabled"}, {"--no-pivot"}, {"--cgroup-manager=disabled", "--no-pivot"}}

// Work implements Arm.
func (c *Crun) Work(ctx context.Context, scenario string) (Work, error) {
	if scenario != CreateExec {
		return nil, unavailable("a container has no %s", scenario)
	}
	program := c.Program
	if program == "" {
		program = "crun"
	}
	program, err := exec.LookPath(program)
	if err != nil {
		return nil, unavailable("crun is not installed: apt-get install crun")
	}
	if c.Rootfs == "" {
		return nil, unavailable("no root file system to run; give one with --rootfs")
	}
	root, err := filepath.Abs(c.Rootfs)
	if err != nil {
		return nil, fmt.Errorf("find the root of containers: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin/bash")); err != nil {
		return nil, unavailable("%s holds no /bin/bash", root)
	}
	dir, err := os.MkdirTemp("", "cella-crun-")
	if err != nil {
		return nil, fmt.Errorf("make a bundle: %w", err)
	}
	w := &crunWork{program: program, dir: dir}
	if err := w.ready(ctx, root); err != nil {
		_ = w.Close() // the first error is the one to report
		return nil, err
	}
	return w, nil
}

// crunWork runs containers of one bundle.
type crunWork struct {
	program, dir string
	options      []string
	next         atomic.Int64
}

// ready writes the bundle and finds the options with which a container runs here.
func (w *crunWork) ready(ctx context.Context, root string) error {
	config, err := json.Marshal(ociConfig(root, []string{"/bin/bash", "-l", "-c", echoCommand}))
	if err != nil {
		return fmt.Errorf("encode config.json: %w", err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "config.json"), config, 0o600); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	var first error
	for _, options := range crunVariants {
		w.options = options
		_, err := w.Do(ctx)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return unavailable("crun cannot run containers here: %v", first)
}

func (w *crunWork) Variant() string { return strings.Join(w.options, " ") }
func (w *crunWork) Close() error    { return os.RemoveAll(w.dir) }

func (w *crunWork) Do(ctx context.Context) (Sample, error) {
	id := fmt.Sprintf("cella-bench-%d-%d", os.Getpid(), w.next.Add(1))
	args := []string{"--root", filepath.Join(w.dir, "state")}
	run := []string{"run", "--bundle", w.dir}
	for _, option := range w.options {
		if option == "--no-pivot" { // an option of run, not of crun
			run = append(run, option)
			continue
		}
		args = append(args, option)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, w.program, append(append(args, run...), id)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return Sample{}, fmt.Errorf("crun run: %w: %s", err, lastLine(stderr.Bytes()))
	}
	if stdout.String() != echoOutput {
		return Sample{}, fmt.Errorf("%w: the container printed %q", errOutput, stdout.String())
	}
	return Sample{Total: took}, nil
}

// ociConfig is the least that isolates a process (OCI runtime specification 1.0, config.md and
// config-linux.md): its own namespaces, a read-only root, no capabilities, an unprivileged user.
func ociConfig(root string, args []string) map[string]any {
	mount := func(destination, kind string, options ...string) map[string]any {
		return map[string]any{"destination": destination, "type": kind, "source": kind, "options": append(options, "nosuid")}
	}
	namespaces := []map[string]string{}
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, map[string]string{"type": kind})
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]int{"uid": 1000, "gid": 1000},
			"args": args,
			"env":  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home/user", "USER=user", "LOGNAME=user"},
			"cwd":  "/", "noNewPrivileges": true,
		},
		"root":     map[string]any{"path": root, "readonly": true},
		"hostname": "bench",
		"mounts": []map[string]any{
			mount("/proc", "proc", "noexec", "nodev"),
			mount("/dev", "tmpfs", "mode=755", "size=65536k"),
			mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620"),
			mount("/sys", "sysfs", "noexec", "nodev", "ro"),
			mount("/tmp", "tmpfs", "nodev", "mode=1777"),
			mount("/run", "tmpfs", "nodev", "mode=755"),
		},
		"linux": map[string]any{
			"namespaces":    namespaces,
			"maskedPaths":   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
