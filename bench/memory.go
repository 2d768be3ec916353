package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Memory is what a set of processes uses, in bytes.
type Memory struct {
	Processes int
	// PSS is the proportional set size: shared pages divided by the number of their users.
	PSS int64
	// OwnPrivate are private pages of the processes themselves, GuestPrivate those of guest memory
	// (mappings of a memfd), which a clone made its own by writing to them.
	OwnPrivate, GuestPrivate int64
}

// sumMemory adds up processes. One that has ended meanwhile counts nothing.
func sumMemory(pids []int) Memory {
	var sum Memory
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			continue
		}
		m := parseSmaps(f)
		f.Close()
		sum.Processes++
		sum.PSS += m.PSS
		sum.OwnPrivate += m.OwnPrivate
		sum.GuestPrivate += m.GuestPrivate
	}
	return sum
}

var mappingLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ `) })

// parseSmaps reads /proc/PID/smaps (proc(5)).
func parseSmaps(r io.Reader) Memory {
	var m Memory
	guest := false
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		line := scanner.Text()
		if mappingLine().MatchString(line) {
			guest = strings.Contains(line, " /memfd:")
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "Pss:":
			m.PSS += kib << 10
		case "Private_Clean:", "Private_Dirty:":
			if guest {
				m.GuestPrivate += kib << 10
			} else {
				m.OwnPrivate += kib << 10
			}
		}
	}
	return m
}

// memAvailable is the kernel's estimate of memory that can still be used without swapping.
func memAvailable() (int64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemAvailable")
}

// VMMs lists the processes of this machine that are VMM workers: their command line is `cella vmm …`.
func VMMs() ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		cmdline, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		args := bytes.Split(cmdline, []byte{0})
		if len(args) < 2 || filepath.Base(string(args[0])) != "cella" || string(args[1]) != "vmm" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
