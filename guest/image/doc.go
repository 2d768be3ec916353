// Package image builds what a guest is made of, once, into the cache: an unmodified Debian kernel, the modules
// its initramfs needs, and the root filesystem of the base template; and it writes the initramfs that carries
// the agent.
//
//	kernel/vmlinuz, vmlinux   the boot image and the ELF inside it
//	kernel/lib/modules/...    all its modules
//	modules/NN-name.ko, order what the guest loads at boot
//	base/rootfs.ext4          Debian with bash, python3, git, curl and sudo
package image
