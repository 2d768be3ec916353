// Package inside is the lab's own half: the first process of the emulated host. It sets the host up with as
// little as the project's tests need (there is no init system), runs one command for the machine outside,
// and sends back what came of it.
package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/lab/proto"
)

// Path is where this binary lies in the lab's initramfs; being started under this name makes it the lab's init.
const Path = "/cella-lab-init"

// newRoot is where the root disk is mounted before it becomes the root.
const newRoot = "/root"

// Main is the lab's init. It does not return: the machine is powered off at the end, and a failure that the
// host outside cannot be told through the port is told on the console.
func Main() {
	conn, err := boot()
	if err == nil {
		err = serve(conn)
	}
	if err != nil {
		fmt.Println("cella lab: init: " + err.Error())
		if conn != nil {
			conn.Send(proto.Failed, []byte(err.Error()))
			// The host ends the lab when it has read this; until then the frame must not be lost.
			time.Sleep(time.Minute)
		}
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// boot brings the machine up, from the initramfs to an open control port.
func boot() (*proto.Conn, error) {
	if err := mountAll(early); err != nil {
		return nil, err
	}
	if err := loadModules("/modules"); err != nil {
		return nil, err
	}
	disks, err := findDisks()
	if err != nil {
		return nil, err
	}
	port, err := openPort()
	if err != nil {
		return nil, err
	}
	conn := proto.NewConn(port)
	if err := enterRoot(disks.root); err != nil {
		return conn, err
	}
	state := mount{disks.state, "/var/lib/cella", "xfs", unix.MS_NOATIME, ""}
	if err := mountAll(append(late, state)); err != nil {
		return conn, err
	}
	for _, step := range []func() error{tune, network} {
		if err := step(); err != nil {
			return conn, err
		}
	}
	if disks.in == "" {
		return conn, nil
	}
	if err := unpack(disks.in, "/"); err != nil {
		return conn, fmt.Errorf("copy files into the lab: %w", err)
	}
	return conn, nil
}

// openPort opens the virtio-serial port that the host named proto.Port.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, file := range names {
		name, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(name)) == proto.Port {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(file)), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no virtio-serial port is called %s", proto.Port)
}

// loadModules loads the files listed in dir/order in their order.
func loadModules(dir string) error {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return fmt.Errorf("read the modules' order: %w", err)
	}
	for _, name := range strings.Fields(string(order)) {
		if err := loadModule(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	params := ""
	if strings.HasSuffix(file, "-kvm_amd.ko") {
		params = "nested=0" // Three levels deep is nobody's wish, and costs on every exit.
	}
	return unix.FinitModule(int(f.Fd()), params, 0)
}

// enterRoot makes the root disk the root, with this binary in it.
func enterRoot(disk string) error {
	if err := mountAll([]mount{{disk, newRoot, "ext4", unix.MS_NOATIME, ""}}); err != nil {
		return err
	}
	if err := copyFile(Path, newRoot+"/usr/local/bin/cella"); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "proc", "sys"} {
		if err := unix.Mount("/"+dir, newRoot+"/"+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move /%s: %w", dir, err)
		}
	}
	// The initramfs is memory; it is given back before it disappears under the new root.
	for _, path := range []string{Path, "/modules"} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return unix.Chdir("/")
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer dst.Close()
	_, err = dst.ReadFrom(src)
	return err
}
