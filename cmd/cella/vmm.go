package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cella.dev/cella/node/worker"
	"cella.dev/cella/vmm"
)

// newVMMCommand is the worker process of one sandbox. The node starts it; it is of no use by hand.
func newVMMCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "vmm VCPUS MEMORY_BYTES",
		Short:  "Run one virtual machine for the node (started by cella serve)",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			vcpus, err := strconv.Atoi(args[0])
			if err != nil {
				return fmt.Errorf("vCPU count: %w", err)
			}
			memory, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return fmt.Errorf("memory size: %w", err)
			}
			return worker.Serve(vmm.Shape{VCPUs: vcpus, MemoryBytes: memory})
		},
	}
}
