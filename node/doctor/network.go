package doctor

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// networkMeans is what all of the network's checks say today: sandboxes without a network are whole.
const networkMeans = "needed for networking; sandboxes run without a network and are reached over vsock"

// probeBTF reads the kernel's own types.
func probeBTF() error {
	_, err := btf.LoadKernelSpec()
	return err
}

func judgeBTF(err error) Check {
	if err != nil {
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "use a kernel built with CONFIG_DEBUG_INFO_BTF=y"}
	}
	return Check{Status: OK, Found: "/sys/kernel/btf/vmlinux"}
}

// inNewNetns runs f in a network namespace that vanishes with it: the thread is never unlocked, so it ends with the
// goroutine, and the namespace with the thread.
func inNewNetns(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("new network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// loopbackIndex is that of lo in every new network namespace.
const loopbackIndex = 1

// probeTCX attaches a program that passes everything to the loopback of an empty network namespace.
func probeTCX() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TCX_NEXT
		License:      "Apache-2.0",
	})
	if err != nil {
		return fmt.Errorf("load an eBPF program: %w", err)
	}
	defer prog.Close()
	return inNewNetns(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: loopbackIndex, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach to lo with TCX: %w", err)
		}
		return l.Close()
	})
}

func judgeTCX(err error) Check {
	switch {
	case errors.Is(err, unix.EPERM):
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "run as root (or with CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN)"}
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "use Linux 6.6 or later"}
	}
	return Check{Status: OK, Found: "an eBPF program attaches with TCX"}
}

// probeTUN makes a TAP with the vnet header that offloads need; it goes away with its file descriptor.
func probeTUN() error {
	return inNewNetns(func() error {
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		req, err := unix.NewIfreq("cella-doctor")
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req); err != nil {
			return fmt.Errorf("TUNSETIFF: %w", err)
		}
		return nil
	})
}

func judgeTUN(err error) Check {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, os.ErrPermission):
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "run as root (or with CAP_NET_ADMIN)"}
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "`modprobe tun`"}
	}
	return Check{Status: OK, Found: "a TAP with vnet headers can be made"}
}

// probeNFT makes a chain that masquerades what conntrack knows, in an empty network namespace.
func probeNFT() error {
	return inNewNetns(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "cella-doctor"})
		chain := conn.AddChain(&nftables.Chain{Table: table, Name: "postrouting", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Masq{}}})
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("masquerade with nftables: %w", err)
		}
		return nil
	})
}

func judgeNFT(err error) Check {
	switch {
	case errors.Is(err, unix.EPERM):
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "run as root (or with CAP_NET_ADMIN)"}
	case err != nil:
		return Check{Status: Fail, Found: err.Error(), Means: networkMeans, Do: "`modprobe nf_tables nft_masq nf_conntrack`, or use a kernel that has them"}
	}
	return Check{Status: OK, Found: "nftables masquerades"}
}
