// Package lab is an emulated, standard KVM host: QEMU's software CPU with SVM and nested paging under a
// Debian kernel. Everything that needs a stock guest is tested and measured in it on machines whose own
// /dev/kvm cannot run one.
package lab
