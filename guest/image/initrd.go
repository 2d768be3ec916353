package image

import (
	"fmt"
	"io"

	"cella.dev/cella/internal/cpio"
	"cella.dev/cella/internal/kmod"
)

// BuildInitrd writes the guest's initramfs, uncompressed, to w:
//
//	/init              the agent, a static binary
//	/modules/*.ko      from modulesDir, with their load order in /modules/order
//	/dev/console       so that the agent has standard files before it mounts devtmpfs
//	/proc /sys /run /tmp /root /mnt   empty, to mount on
//
// The same input gives the same bytes.
func BuildInitrd(w io.Writer, agentBinary, modulesDir string) error {
	c := cpio.NewWriter(w)
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "root", "mnt", "modules"} {
		c.Dir(dir, 0o755)
	}
	c.Char("dev/console", 0o600, 5, 1)
	if err := c.CopyFile("init", 0o755, agentBinary); err != nil {
		return fmt.Errorf("put the agent into the initramfs: %w", err)
	}
	if err := kmod.Pack(c, modulesDir); err != nil {
		return fmt.Errorf("put the modules into the initramfs: %w", err)
	}
	return c.Close()
}
