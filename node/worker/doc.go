// Package worker is the VMM process of one sandbox, and the node's handle on it.
//
// A worker is started before its sandbox is known (Start): it creates the KVM objects for its shape and then
// waits on its control socket, file descriptor 3. Boot or Restore makes it a sandbox's machine; all files it
// works with arrive as descriptors on that socket, it opens no path. When the control socket closes, the
// worker ends: no machine outlives the process that looks after it.
//
//	node ── Start ──▶ cella vmm     KVM VM, vCPUs, interrupt controller, memslots
//	node ── Restore + 5 fds ──▶     map memory, set state, run
//	node ◀── exited ──              the guest powered off, reset or crashed
package worker
