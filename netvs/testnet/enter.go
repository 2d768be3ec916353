package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// entered is set in the environment of a process that is in namespaces of its own.
const entered = "CELLA_TESTNET"

// Enter gives the process network and mount namespaces of its own, by running itself again in them: what it does to
// the network touches nobody, and is gone when it ends. In the outer process Enter does not return: it exits with
// the inner one's status. It needs root.
func Enter() error {
	if os.Getenv(entered) == "" {
		code, err := runInside()
		if err != nil {
			return fmt.Errorf("run in network and mount namespaces (as root): %w", err)
		}
		os.Exit(code)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

func runInside() (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), entered+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}
