package worker

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A worker that is ready needs no path, no capability and no other process, so it gives them up before it is told
// anything: a guest that breaks out of its machine finds itself in an empty directory that no longer exists, as a user
// that nobody else is. What is left to a jail of its own namespaces and a system-call filter is in docs/decisions.

// emptyRootFD is where a worker finds the directory that becomes its root.
const emptyRootFD = 4

// jailUIDBase is added to a worker's process ID to get its user and group: no two live workers share one, and no
// account of the host has one (useradd's ranges end far below).
const jailUIDBase = 2_000_000_000

// emptyRoot is a directory with nothing in it and no name, in which nothing can be made any more.
var emptyRoot = sync.OnceValues(func() (*os.File, error) {
	name, err := os.MkdirTemp("", "cella-empty-")
	if err != nil {
		return nil, fmt.Errorf("make the workers' root directory: %w", err)
	}
	defer os.Remove(name)
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the workers' root directory: %w", err)
	}
	return f, nil
})

// jail gives up the file system and all privileges for good. A process that does not run as root keeps its user: it
// has no privileges to lose.
func jail() error {
	if os.Geteuid() == 0 {
		if err := unix.Fchdir(emptyRootFD); err != nil {
			return fmt.Errorf("jail: enter the empty root: %w", err)
		}
		if err := unix.Chroot("."); err != nil {
			return fmt.Errorf("jail: %w", err)
		}
		id := jailUIDBase + os.Getpid()
		// The syscall package's calls change every thread; leaving user 0 clears all capabilities.
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("jail: drop groups: %w", err)
		}
		if err := syscall.Setresgid(id, id, id); err != nil {
			return fmt.Errorf("jail: leave the group: %w", err)
		}
		if err := syscall.Setresuid(id, id, id); err != nil {
			return fmt.Errorf("jail: leave the user: %w", err)
		}
	}
	unix.Close(emptyRootFD)
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return fmt.Errorf("jail: no new privileges: %w", errno)
	}
	// Not dumpable: no other process of the same user could trace it, and a crash leaves no core with guest memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("jail: not dumpable: %w", err)
	}
	return nil
}
