package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"cella.dev/cella/guest/image"
	"cella.dev/cella/node"
)

// nodeFlags are the flags of every command that runs sandboxes in its own process.
type nodeFlags struct {
	state, run       string
	poolMin, poolMax int
	network          string
	networkRange     string
	resolvers        []string
}

func (f *nodeFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.state, "state", "/var/lib/cella", "directory of templates, disks and keys; needs reflinks (XFS, btrfs)")
	flags.StringVar(&f.run, "run", "/run/cella", "directory of sockets")
	flags.IntVar(&f.poolMin, "pool-min", 2, "sandboxes kept ready for each template at least")
	flags.IntVar(&f.poolMax, "pool-max", 16, "sandboxes kept ready for each template at most; 0 keeps none")
}

// registerNetwork is for commands whose sandboxes may have a network.
func (f *nodeFlags) registerNetwork(flags *pflag.FlagSet, mode string) {
	flags.StringVar(&f.network, "network", mode, "network of sandboxes: auto (where this host can isolate it), on, or off")
	flags.StringVar(&f.networkRange, "network-range", "10.77.0.0/16", "addresses by which the host knows its sandboxes; not seen outside")
	flags.StringSliceVar(&f.resolvers, "resolver", nil, "`ADDRESS:PORT` that is asked for names (default those of /etc/resolv.conf)")
}

func (f *nodeFlags) options() (node.Options, error) {
	o := node.Options{State: f.state, Run: f.run, PoolMin: min(f.poolMin, f.poolMax), PoolMax: f.poolMax, Resolvers: f.resolvers}
	switch f.network {
	case "", "off":
		return o, nil
	case "auto", "on":
		o.Network = node.NetworkMode(f.network)
	default:
		return o, fmt.Errorf("--network %s: want auto, on or off", f.network)
	}
	var err error
	if o.Egress.Range, err = netip.ParsePrefix(f.networkRange); err != nil {
		return o, fmt.Errorf("--network-range: %w", err)
	}
	return o, nil
}

// baseWarmUp are the commands whose files the base template's snapshot holds in memory: what agents run first.
var baseWarmUp = []string{"echo hello", "python3 -c 'import json, os, re, subprocess, sys; print(1)'", "git --version", "ls -la / | wc -l"}

// buildBase builds the base template from the guest's files that set-up made.
func buildBase(ctx context.Context, n *node.Node, spec node.TemplateSpec) (node.Template, error) {
	assets, err := image.Locate()
	if err != nil {
		return node.Template{}, err
	}
	initrd, err := os.CreateTemp("", "cella-initrd-")
	if err != nil {
		return node.Template{}, err
	}
	defer os.Remove(initrd.Name())
	defer initrd.Close()
	agent, err := agentBinary()
	if err != nil {
		return node.Template{}, err
	}
	if err := image.BuildInitrd(initrd, agent, assets.Modules); err != nil {
		return node.Template{}, err
	}
	spec.Kernel, spec.Rootfs, spec.Initrd = assets.Vmlinux, assets.Rootfs, initrd.Name()
	spec.WarmUp = baseWarmUp
	return n.BuildTemplate(ctx, spec)
}

// agentBinary finds cella-agent beside this binary.
func agentBinary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	name := filepath.Join(filepath.Dir(self), "cella-agent")
	if _, err := os.Stat(name); err != nil {
		return "", fmt.Errorf("%w: cella-agent must be beside %s (make build)", err, self)
	}
	return name, nil
}

// ensureBase builds the base template if there is none.
func ensureBase(ctx context.Context, n *node.Node) error {
	_, err := n.Template("base")
	if !errors.Is(err, node.ErrTemplateNotFound) {
		return err
	}
	fmt.Fprintln(os.Stderr, "building the base template (once)")
	_, err = buildBase(ctx, n, node.TemplateSpec{Alias: "base", Progress: printStep})
	return err
}

func printStep(step string) { fmt.Fprintln(os.Stderr, "  "+step) }
