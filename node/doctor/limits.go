package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What one sandbox costs the control process in file descriptors: control socket, vsock socket, pidfd, disk, tap,
// two console pipes, and one client connection with its upstream half.
const (
	filesPerSandbox = 10
	filesReserved   = 256
)

func probeOpenFiles() (uint64, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Cur, err
}

func judgeFiles(soft uint64, err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: "the limit of open files is unknown", Do: "run `ulimit -n`"}
	}
	sandboxes := (max(soft, filesReserved) - filesReserved) / filesPerSandbox
	c := Check{Status: OK, Found: fmt.Sprintf("%d open files, enough for %d sandboxes", soft, sandboxes)}
	const do = "raise it: `ulimit -n 1048576`, or LimitNOFILE=1048576 in the service's unit"
	switch {
	case sandboxes < 10:
		c.Status, c.Means, c.Do = Fail, "a handful of sandboxes would use them up", do
	case sandboxes < 1000:
		c.Status, c.Means, c.Do = Warn, "a well-filled host would use them up", do
	}
	return c
}

// memoryFacts are of /proc/meminfo, in bytes.
type memoryFacts struct{ total, available uint64 }

func probeMemory() (memoryFacts, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return memoryFacts{}, err
	}
	defer f.Close()
	var m memoryFacts
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			m.total = kib << 10
		case "MemAvailable:":
			m.available = kib << 10
		}
	}
	if m.total == 0 {
		return m, errors.New("/proc/meminfo has no MemTotal")
	}
	return m, nil
}

func judgeMemory(m memoryFacts, err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: "the memory is unknown", Do: "mount /proc"}
	}
	const gib = 1 << 30
	c := Check{Status: OK, Found: fmt.Sprintf("%.1f GiB available of %.1f", float64(m.available)/gib, float64(m.total)/gib)}
	if m.available < gib {
		c.Status, c.Means, c.Do = Warn, "room for a template and a few small sandboxes only", "stop what is not needed, or use a larger machine"
	}
	return c
}

// cgroupFacts describes the unified hierarchy. mount is empty where there is none.
type cgroupFacts struct {
	mount       string
	controllers []string
	favorDyn    bool
	// mkdirErr is nil if a group could be made (and was removed).
	mkdirErr error
}

func probeCgroup() (cgroupFacts, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroupFacts{}, err
	}
	f := parseCgroupMount(string(b))
	if f.mount == "" {
		return f, nil
	}
	if b, err := os.ReadFile(filepath.Join(f.mount, "cgroup.controllers")); err == nil {
		f.controllers = strings.Fields(string(b))
	}
	dir, err := os.MkdirTemp(f.mount, "cella-doctor-")
	if err == nil {
		err = os.Remove(dir)
	}
	f.mkdirErr = err
	return f, nil
}

// parseCgroupMount finds the first cgroup2 in a mountinfo (proc_pid_mountinfo(5)): the mount point is the fifth
// field, and the type and the superblock's options follow the dash.
func parseCgroupMount(mountinfo string) cgroupFacts {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 3 || tail[0] != "cgroup2" {
			continue
		}
		return cgroupFacts{mount: fields[4], favorDyn: strings.Contains(tail[2], "favordynmods")}
	}
	return cgroupFacts{}
}

func judgeCgroup(f cgroupFacts, err error) Check {
	const means = "sandboxes run, but their CPU and memory are not limited from outside"
	switch {
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: means, Do: "mount /proc"}
	case f.mount == "":
		return Check{Status: Fail, Found: "cgroup v2 is not mounted", Means: means,
			Do: "boot with systemd.unified_cgroup_hierarchy=1, or `mount -t cgroup2 none /sys/fs/cgroup`"}
	case f.mkdirErr != nil:
		return Check{Status: Fail, Found: f.mkdirErr.Error(), Means: means, Do: "run as root, or delegate a group to this user"}
	}
	var lacks []string
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(f.controllers, want) {
			lacks = append(lacks, want)
		}
	}
	if len(lacks) > 0 {
		return Check{Status: Warn, Found: fmt.Sprintf("%s, writable, without the controllers %s", f.mount, strings.Join(lacks, ", ")),
			Means: means, Do: "boot with cgroup_no_v1=all, so that version 1 does not hold them"}
	}
	c := Check{Status: OK, Found: f.mount + ", writable, with cpu, memory and pids"}
	if !f.favorDyn {
		c.Found += "; not favordynmods (moving a worker into its group may take milliseconds)"
	}
	return c
}

// probeKernel reads the release, and HZ from the resolution of the coarse clock, which advances once a tick.
func probeKernel() (Kernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Kernel{}, err
	}
	k := Kernel{Release: unix.ByteSliceToString(u.Release[:])}
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		return k, fmt.Errorf("clock_getres: %w", err)
	}
	if ns := res.Nano(); ns > 0 {
		k.HZ = int((1e9 + ns/2) / ns)
	}
	return k, nil
}

func judgeKernel(k Kernel, err error) Check {
	if err != nil {
		return Check{Status: Warn, Found: err.Error(), Means: "the kernel's release or tick is unknown", Do: "nothing, if the other lines are fine"}
	}
	return Check{Status: OK, Found: fmt.Sprintf("%s, HZ=%d", k.Release, k.HZ)}
}
