package boot

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/reap"
)

const (
	// termGrace is what processes get to end by themselves, killGrace what the kernel gets to end them.
	termGrace = 3 * time.Second
	killGrace = 2 * time.Second
)

// PowerOff ends all processes, brings the disk to rest and switches the machine off. It doesn't return.
func PowerOff(log *slog.Logger, reaper *reap.Reaper, groups *cgroup.Parent) {
	if groups != nil {
		groups.Thaw() // what is frozen can't react to SIGTERM
	}
	unix.Kill(-1, unix.SIGTERM)
	if waitAll(reaper, termGrace) != nil {
		unix.Kill(-1, unix.SIGKILL)
		if err := waitAll(reaper, killGrace); err != nil {
			log.Warn("processes left at power-off", "err", err)
		}
	}
	Halt(log)
}

func waitAll(reaper *reap.Reaper, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return reaper.WaitAll(ctx)
}

// Halt writes the disk's state down and switches the machine off at once. It doesn't return.
func Halt(log *slog.Logger) {
	unix.Sync()
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		log.Warn("root not remounted read-only; its journal will be replayed", "err", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// A kernel without a way to switch off comes back here or halts. A restart is an end as well.
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}
