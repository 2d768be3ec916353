package doctor

import (
	"context"
	"errors"
	"time"
)

// host is the machine as the checks see it: one probe each. Tests replace single probes.
type host struct {
	kvm        func() (kvmFacts, error)
	syscallCPL func(context.Context, Options) (int, error)
	createTime func() (createFacts, error)
	reflink    func(dir string) (reflinkFacts, error)
	openFiles  func() (soft uint64, err error)
	elf        func(path string) error
	ext4       func(path string) error
	memory     func() (memoryFacts, error)
	cgroup     func() (cgroupFacts, error)
	uffd       func() (uffdFacts, error)
	btf        func() error
	tcx        func() error
	tun        func() error
	nft        func() error
	kernel     func() (Kernel, error)
}

// errNoProbe is what the semantics check fails with in a build that was given no nano guest.
var errNoProbe = errors.New("this build has no nano guest to try it with")

func realHost() host {
	return host{
		kvm: probeKVM,
		syscallCPL: func(ctx context.Context, o Options) (int, error) {
			if o.SyscallCPL == nil {
				return 0, errNoProbe
			}
			return o.SyscallCPL(ctx)
		},
		createTime: probeCreateTime,
		reflink:    probeReflink,
		openFiles:  probeOpenFiles,
		elf:        probeELF,
		ext4:       probeExt4,
		memory:     probeMemory,
		cgroup:     probeCgroup,
		uffd:       probeUffd,
		btf:        probeBTF,
		tcx:        probeTCX,
		tun:        probeTUN,
		nft:        probeNFT,
		kernel:     probeKernel,
	}
}

// asset reads the file, if there is a path to it.
func (h host) asset(o Options, path string, read func(string) error) error {
	if path == "" && o.AssetsErr != nil {
		return o.AssetsErr
	}
	return read(path)
}

// ms prints a duration as the milliseconds people compare.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
