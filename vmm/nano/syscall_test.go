package nano

import (
	"context"
	"testing"
)

// A stock kernel's guest arrives at CPL 0; a KVM that emulates kernel mode stays at CPL 3. Nothing else is
// possible, and a probe that crashes is a fault of the probe on every host this was tried on.
func TestSyscallArrives(t *testing.T) {
	cpl, err := SyscallCPL(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if cpl != 0 && cpl != 3 {
		t.Errorf("system calls arrive at CPL %d, want 0 or 3", cpl)
	}
	t.Logf("system calls arrive at CPL %d", cpl)
}

func TestSyscallProbeIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// The answer may still be the first that select sees; what counts is that it returns.
	if _, err := SyscallCPL(ctx); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
}
