package kmod

import (
	"os"
	"path/filepath"
	"strings"

	"cella.dev/cella/internal/cpio"
)

// Pack adds the files of a directory made by Extract to an archive, under /modules.
func Pack(c *cpio.Writer, dir string) error {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return err
	}
	for _, name := range append(strings.Fields(string(order)), "order") {
		if err := c.CopyFile("modules/"+name, 0o644, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
