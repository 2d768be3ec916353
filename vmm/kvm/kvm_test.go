package kvm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) *System {
	t.Helper()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestFDClosesOnce(t *testing.T) {
	raw, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := NewFD(raw)
	if f.Int() != raw {
		t.Errorf("Int is %d, want %d", f.Int(), raw)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f.Int() != -1 {
		t.Errorf("Int of a closed FD is %d, want -1", f.Int())
	}
	// The number may be somebody else's by now; a second Close must not touch it.
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if zero := new(FD); zero.Int() != -1 || zero.Close() != nil {
		t.Error("the zero FD is not a closed one")
	}
}

func TestSystemDescribesHost(t *testing.T) {
	s := open(t)
	if s.RunSize < 4096 || s.XSaveSize < 4096 || s.MaxVCPUs < 1 {
		t.Errorf("run area %d, XSAVE %d bytes, %d vCPUs", s.RunSize, s.XSaveSize, s.MaxVCPUs)
	}
	cpuid, err := s.SupportedCPUID()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpuid) == 0 || cpuid[0].Function != 0 {
		t.Errorf("supported CPUID has %d entries and does not start with leaf 0", len(cpuid))
	}
	msrs, err := s.MSRIndices()
	if err != nil {
		t.Fatal(err)
	}
	if len(msrs) < 10 {
		t.Errorf("only %d MSRs to save", len(msrs))
	}
}

func TestErrorsNameIoctl(t *testing.T) {
	s := open(t)
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	err = vm.SetMemoryRegion(MemoryRegion{Slot: 0, Size: 1})
	if !errors.Is(err, unix.EINVAL) || err.Error() != "KVM_SET_USER_MEMORY_REGION: invalid argument" {
		t.Errorf("error is %v", err)
	}
}

func TestRegistersComeBack(t *testing.T) {
	s := open(t)
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	if err := vm.EnableSplitIRQChip(24); err != nil {
		t.Fatal(err)
	}
	c, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := Regs{RAX: 1, R15: 1 << 63, RIP: 0x1000, RFLAGS: 2}
	if err := c.SetRegs(&want); err != nil {
		t.Fatal(err)
	}
	got, err := c.Regs()
	if err != nil || got != want {
		t.Errorf("registers are %+v (%v), want %+v", got, err, want)
	}
	x, err := c.XSave()
	if err != nil {
		t.Fatal(err)
	}
	if len(x) != s.XSaveSize {
		t.Errorf("XSAVE has %d bytes, want %d", len(x), s.XSaveSize)
	}
	if err := c.SetXSave(x[:100]); err == nil {
		t.Error("an XSAVE state of 100 bytes was accepted")
	}
	// What must not happen is that an unknown MSR is skipped without a word.
	var rejected *RejectedMSRError
	if err := c.SetMSRs([]MSREntry{{Index: 0xc0000081, Data: 1}, {Index: 0xdeadbeef, Data: 7}}); !errors.As(err, &rejected) || rejected.Index != 0xdeadbeef || rejected.Value != 7 {
		t.Errorf("setting an unknown MSR: %v", err)
	}
}

func TestImmediateExitComesBackAtOnce(t *testing.T) {
	s := open(t)
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	c, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetImmediateExit(true)
	if err := c.Run(); err != unix.EINTR {
		t.Errorf("Run with immediate exit: %v, want EINTR", err)
	}
}
