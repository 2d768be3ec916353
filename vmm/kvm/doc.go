// Package kvm is the kernel's KVM interface with types: one function per ioctl, structs that mirror the
// kernel ABI (linux/kvm.h, asm/kvm.h for x86-64), and file descriptors that are closed once. It holds every
// ioctl number and every unsafe pointer of the virtual machine and decides nothing.
//
//	System (/dev/kvm) ──CreateVM──▶ VM ──CreateVCPU──▶ VCPU ──Run──▶ exit
//
// Errors name the ioctl. Numbers in parentheses (api.rst §4.35) refer to the kernel's
// Documentation/virt/kvm/api.rst.
package kvm
