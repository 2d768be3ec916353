package doctor

import (
	"errors"
	"time"

	"cella.dev/cella/vmm/kvm"
)

// probeKVM opens /dev/kvm, which checks its version and all that the VMM needs.
func probeKVM() (kvmFacts, error) {
	sys, err := kvm.Open()
	var missing *kvm.MissingCapError
	if errors.As(err, &missing) {
		return kvmFacts{missing: missing.Name, since: missing.Since}, nil
	}
	if err != nil {
		return kvmFacts{}, err
	}
	return kvmFacts{maxVCPUs: sys.MaxVCPUs}, sys.Close()
}

// probeCreateTime creates a VM and a vCPU and lets go of them.
func probeCreateTime() (f createFacts, err error) {
	sys, err := kvm.Open()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, sys.Close()) }()
	start := time.Now()
	vm, err := sys.CreateVM()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, vm.Close()) }()
	f.vm = time.Since(start)
	start = time.Now()
	vcpu, err := vm.CreateVCPU(0)
	if err != nil {
		return f, err
	}
	f.vcpu = time.Since(start)
	f.nxHugePages = readNXHugePages()
	return f, vcpu.Close()
}
