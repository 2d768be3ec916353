package agent

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// metrics is the body of GET /metrics. Sizes are in bytes but for the two in MiB.
type metrics struct {
	Timestamp int64 `json:"ts"`
	CPUCount  int   `json:"cpu_count"`
	// CPUUsedPct is the busy share of all CPUs since the last call, 0 to 100.
	CPUUsedPct  float64 `json:"cpu_used_pct"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

// A meter remembers the CPU times of its last reading: usage is a difference.
type meter struct {
	mu   sync.Mutex
	last cpuTimes
}

// cpuTimes are in clock ticks since boot.
type cpuTimes struct{ busy, total uint64 }

// newMeter takes the first reading, so that the first call has something to compare with.
func newMeter() *meter {
	m := &meter{}
	m.last, _ = readCPU()
	return m
}

func (m *meter) read() (*metrics, error) {
	now, err := readCPU()
	if err != nil {
		return nil, err
	}
	out := &metrics{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU()}
	m.mu.Lock()
	if total := now.total - m.last.total; total > 0 {
		out.CPUUsedPct = float64(now.busy-m.last.busy) * 100 / float64(total)
	}
	m.last = now
	m.mu.Unlock()
	if err := out.readMemory(); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return nil, fmt.Errorf("read disk usage: %w", err)
	}
	out.DiskTotal = fs.Blocks * uint64(fs.Bsize)
	out.DiskUsed = (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	return out, nil
}

// readCPU sums the first line of /proc/stat: user nice system idle iowait irq softirq steal; see proc(5).
func readCPU() (cpuTimes, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, fmt.Errorf("read CPU times: %w", err)
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	var t cpuTimes
	for i, field := range strings.Fields(string(line)) {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil || i > 8 {
			continue // the leading "cpu"; and guest time is part of user time already
		}
		t.total += n
		if i != 4 && i != 5 {
			t.busy += n
		}
	}
	return t, nil
}

func (m *metrics) readMemory() error {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fmt.Errorf("read memory usage: %w", err)
	}
	kib := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			kib[name], _ = strconv.ParseUint(fields[0], 10, 64)
		}
	}
	m.MemTotal = kib["MemTotal"] << 10
	m.MemUsed = (kib["MemTotal"] - min(kib["MemAvailable"], kib["MemTotal"])) << 10
	m.MemCache = (kib["Cached"] + kib["SReclaimable"]) << 10
	m.MemTotalMiB, m.MemUsedMiB = m.MemTotal>>20, m.MemUsed>>20
	return nil
}
