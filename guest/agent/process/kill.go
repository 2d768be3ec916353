package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// killTree kills the process and all that came from it. With a cgroup the kernel does it in one step;
// without one, whatever has the process as an ancestor or shares its session is looked up in /proc.
func (p *proc) killTree() error {
	if p.group != nil {
		if err := p.group.Kill(); err != nil {
			return fmt.Errorf("kill process tree: %w", err)
		}
		return nil
	}
	// Stopped first, the leader can't fork while its descendants are collected; again until nothing new
	// turns up, for those that can.
	p.service.reaper.Signal(p.child, syscall.SIGSTOP)
	killed := map[int]bool{}
	for range 10 {
		found, err := descendants(p.pid())
		if err != nil {
			return err
		}
		fresh := false
		for _, pid := range found {
			if !killed[pid] {
				killed[pid], fresh = true, true
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !fresh {
			break
		}
	}
	err := p.service.reaper.Signal(p.child, syscall.SIGKILL)
	if len(killed) > 0 && errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// descendants lists the processes that have root as an ancestor or are in its session.
func descendants(root int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ppid, session, ok := readStat(pid)
		switch {
		case !ok || pid == root:
		case session == root:
			found = append(found, pid)
		default:
			children[ppid] = append(children[ppid], pid)
		}
	}
	found = append(found, children[root]...)
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found, nil
}

// readStat reads parent and session of a process; see proc(5), /proc/pid/stat.
func readStat(pid int) (ppid, session int, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	// The name in parentheses may hold anything, so count from its end: state, ppid, pgrp, session.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 4 {
		return 0, 0, false
	}
	ppid, _ = strconv.Atoi(fields[1])
	session, _ = strconv.Atoi(fields[3])
	return ppid, session, true
}
