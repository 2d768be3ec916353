// Package linuxdriver holds the virtio devices against Linux's own drivers: its tests boot an unmodified
// kernel and use a disk, the entropy source and sockets from inside, across saves and restores. They need a host
// whose KVM runs stock guests, the build tag e2e, and in the environment CELLA_GUEST_KERNEL (an uncompressed ELF
// kernel) and CELLA_GUEST_MODULES (a directory with its virtio modules and a file "order" that lists them).
package linuxdriver
