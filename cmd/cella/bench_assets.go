package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cella.dev/cella/guest/image"
)

// assets gives the peers what set-up made, where no flag names another: QEMU the same kernel, modules, agent
// and root as the base template, crun the root mounted read-only. The cleanup undoes it. Without set-up the
// peers stay without, and say so in the report.
func (f *benchFlags) assets(log func(string, ...any)) (cleanup func() error, err error) {
	dir, err := os.MkdirTemp("", "cella-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	cleanup = func() error { return os.RemoveAll(dir) }
	assets, err := image.Locate()
	if err != nil {
		log("peers: %v", err)
		return cleanup, nil
	}
	setDefault(&f.qemu.Kernel, assets.Vmlinuz)
	setDefault(&f.qemu.Disk, assets.Rootfs)
	if f.qemu.Initrd == "" {
		initrd := filepath.Join(dir, "initrd")
		if err := writeInitrd(initrd, assets.Modules); err != nil {
			log("peers: %v", err)
		} else {
			f.qemu.Initrd = initrd
		}
	}
	if f.crun.Rootfs == "" {
		mount := filepath.Join(dir, "rootfs")
		if err := mountImage(assets.Rootfs, mount); err != nil {
			log("peers: %v", err)
		} else {
			f.crun.Rootfs = mount
			cleanup = func() error { return errors.Join(unmount(mount), os.RemoveAll(dir)) }
		}
	}
	return cleanup, nil
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// writeInitrd builds the initramfs that the base template boots with.
func writeInitrd(path, modules string) error {
	agent, err := agentBinary()
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	defer f.Close()
	if err := image.BuildInitrd(f, agent, modules); err != nil {
		return err
	}
	return f.Close()
}

func mountImage(image, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	// noload: a read-only mount must not replay the journal of an image that others clone.
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,ro,noload", image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", image, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func unmount(dir string) error {
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}
