// Package guest is the room of what runs inside a sandbox.
//
//	guest/agent   PID 1, and E2B's data plane: processes, files, ports
//	guest/image   recipes of the kernel, the modules and the root file system that guests boot
//	guest/wire    what host and agent say to each other outside the E2B protocol
package guest
