package reap

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

var reaper = New()

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := reaper.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryOwnerGetsItsOwnStatus(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 50 {
		want := i % 7
		p := start(t, "exit "+string(rune('0'+want)))
		wg.Go(func() {
			<-p.Done()
			if got := p.Status().ExitStatus(); got != want {
				t.Errorf("pid %d: exit %d, want %d", p.PID, got, want)
			}
		})
	}
	wg.Wait()
}

func TestStartFailureIsReported(t *testing.T) {
	_, err := reaper.Start("/nonexistent", []string{"x"}, &syscall.ProcAttr{})
	if err == nil || err.Error() != "start /nonexistent: no such file or directory" {
		t.Fatalf("err = %v", err)
	}
}

func TestSignalAfterTheEndReachesNobody(t *testing.T) {
	p := start(t, "kill -9 $$")
	<-p.Done()
	if got := p.Status().Signal(); got != syscall.SIGKILL {
		t.Errorf("signal %v, want SIGKILL", got)
	}
	if err := reaper.Signal(p, syscall.SIGTERM); err != os.ErrProcessDone {
		t.Errorf("Signal = %v, want os.ErrProcessDone", err)
	}
}

func TestWaitAllReturnsWhenTheLastChildIsGone(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p := start(t, "read x")
	if err := reaper.Signal(p, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := reaper.WaitAll(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("WaitAll returned before the child was reaped")
	}
}
