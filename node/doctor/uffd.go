package doctor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// uffdFacts says what a userfaultfd that also sees faults of the kernel (KVM's) can do.
type uffdFacts struct {
	// via is how it was opened: "the system call" or "/dev/userfaultfd".
	via string
	// missingShmem is UFFD_FEATURE_MISSING_SHMEM: faults on a memfd's holes are reported.
	missingShmem bool
}

func judgeUffd(f uffdFacts, err error) Check {
	const means = "needed for lazily loaded templates; templates are kept wholly in memory without it"
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return Check{Status: Fail, Found: err.Error(), Means: means,
			Do: "run as root, give this user /dev/userfaultfd, or `sysctl vm.unprivileged_userfaultfd=1`"}
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: means, Do: "use a kernel built with CONFIG_USERFAULTFD=y"}
	case !f.missingShmem:
		return Check{Status: Fail, Found: "userfaultfd without MISSING on shared memory", Means: means, Do: "use Linux 4.11 or later"}
	}
	return Check{Status: OK, Found: fmt.Sprintf("MISSING on shared memory, by %s", f.via)}
}
