// Package nano has guests of a few dozen bytes of machine code that use nothing but simple instructions, port
// I/O and device memory. They start in microseconds and run on any KVM, so the run loop, device dispatch,
// pausing, and saving and restoring machines are tested natively with them; and one of them finds out by trying
// whether a host's KVM can run a stock kernel at all.
//
// All run in 64-bit mode with the first 4 GiB mapped to themselves.
package nano
