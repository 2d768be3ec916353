// Package boot puts a Linux kernel into guest memory the way a boot loader and firmware would: the segments
// of an uncompressed 64-bit ELF kernel, its command line and initial RAM disk, the boot parameters with the
// memory map, the ACPI tables that describe the board, and the page tables and descriptors for an entry in
// long mode. It touches guest memory only through bounds-checked slices; kernels and images are hostile input.
//
//	0x0000500  GDT             0x00e0000  ACPI tables, RSDP first
//	0x0007000  boot params     0x0100000  kernel, by its own program headers
//	0x0009000  page tables     end of low RAM  initial RAM disk
//	0x0020000  command line    0xc0000000..4 GiB  no RAM: devices
package boot
