package kvm

import "fmt"

// Cap is a KVM capability number.
type Cap uint32

// Capabilities this package asks for (linux/kvm.h).
const (
	CapIRQChip          Cap = 0
	CapUserMemory       Cap = 3
	CapSetTSSAddr       Cap = 4
	CapMPState          Cap = 14
	CapMaxVCPUs         Cap = 66
	CapIOEventFD        Cap = 36
	CapAdjustClock      Cap = 39
	CapVCPUEvents       Cap = 41
	CapDebugRegs        Cap = 50
	CapXSave            Cap = 55
	CapXCRs             Cap = 56
	CapTSCControl       Cap = 60
	CapGetTSCKHz        Cap = 61
	CapTSCDeadlineTimer Cap = 72
	CapKVMClockCtrl     Cap = 76
	CapSignalMSI        Cap = 77
	CapSplitIRQChip     Cap = 121
	CapImmediateExit    Cap = 136
	CapXSave2           Cap = 208
	CapX2APICAPI        Cap = 129
	CapPreFaultMemory   Cap = 236
)

// required lists what a Machine cannot do without, and since when the kernel has it.
var required = []struct {
	cap   Cap
	name  string
	since string
}{
	{CapUserMemory, "KVM_CAP_USER_MEMORY", "2.6.25"},
	{CapMPState, "KVM_CAP_MP_STATE", "2.6.26"},
	{CapIOEventFD, "KVM_CAP_IOEVENTFD", "2.6.31"},
	{CapVCPUEvents, "KVM_CAP_VCPU_EVENTS", "2.6.33"},
	{CapDebugRegs, "KVM_CAP_DEBUGREGS", "2.6.34"},
	{CapXSave, "KVM_CAP_XSAVE", "2.6.36"},
	{CapTSCDeadlineTimer, "KVM_CAP_TSC_DEADLINE_TIMER", "3.3"},
	{CapSignalMSI, "KVM_CAP_SIGNAL_MSI", "3.5"},
	{CapSplitIRQChip, "KVM_CAP_SPLIT_IRQCHIP", "4.4"},
	{CapImmediateExit, "KVM_CAP_IMMEDIATE_EXIT", "4.11"},
}

// MissingCapError says that the host's KVM lacks something a Machine needs.
type MissingCapError struct {
	Name  string
	Since string
}

func (e *MissingCapError) Error() string {
	return fmt.Sprintf("this host's KVM has no %s: use Linux %s or newer as the host's kernel", e.Name, e.Since)
}
