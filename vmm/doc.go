// Package vmm is the virtual machine: it boots a stock Linux kernel, or restores one from saved state, on
// raw KVM. A Machine owns the KVM objects and the run loop; devices are pure state machines in the
// packages below it and never see KVM.
//
//	vmm/kvm      typed ioctls, the only place with ioctl numbers
//	vmm/boot     ELF loading, boot parameters, ACPI tables
//	vmm/chipset  serial port, reset and power-off, IOAPIC
//	vmm/virtio   virtqueues, the MMIO transport and the devices
//	vmm/nano     guests of a few dozen bytes, which test all of this on any KVM
package vmm
