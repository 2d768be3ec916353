package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cella.dev/cella/guest/image"
	"cella.dev/cella/node/doctor"
	"cella.dev/cella/vmm/nano"
)

// newDoctorCommand finds out whether this machine can serve sandboxes. It ends with 0 only if it can.
func newDoctorCommand() *cobra.Command {
	var o doctor.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out, by trying, whether this machine can run sandboxes, and what to do if not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.SyscallCPL = nano.SyscallCPL
			findAssets(&o)
			r := doctor.Run(cmd.Context(), o)
			if err := printReport(cmd.OutOrStdout(), r, asJSON); err != nil {
				return err
			}
			if !r.Ready {
				return errors.New(r.Verdict())
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.StateDir, "state", "/var/lib/cella", "where sandboxes' disks will be kept")
	cmd.Flags().StringVar(&o.GuestKernel, "kernel", "", "guest kernel, an unpacked ELF (default: what set-up made)")
	cmd.Flags().StringVar(&o.GuestRootfs, "rootfs", "", "base rootfs, an ext4 image (default: what set-up made)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

// printReport writes the report, and in text the good verdict: the bad one is the command's error.
func printReport(w io.Writer, r doctor.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := r.WriteText(w); err != nil || !r.Ready {
		return err
	}
	_, err := fmt.Fprintln(w, r.Verdict())
	return err
}

// findAssets fills in the guest's files that no flag names.
func findAssets(o *doctor.Options) {
	assets, err := image.Locate()
	o.AssetsErr = err
	if o.GuestKernel == "" {
		o.GuestKernel = assets.Vmlinux
	}
	if o.GuestRootfs == "" {
		o.GuestRootfs = assets.Rootfs
	}
}
