package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cella.dev/cella/node"
)

func newTemplateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Build, list and remove templates (while no server runs)"}
	cmd.AddCommand(newTemplateBuildCommand(), newTemplateListCommand(), newTemplateRemoveCommand())
	return cmd
}

// withNode opens a node without workers for one command.
func withNode(f nodeFlags, do func(*node.Node) error) (err error) {
	f.poolMax = 0
	opts, err := f.options()
	if err != nil {
		return err
	}
	n, err := node.Open(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeNode(n)) }()
	return do(n)
}

func newTemplateBuildCommand() *cobra.Command {
	var flags nodeFlags
	var console bool
	spec := node.TemplateSpec{Progress: printStep}
	cmd := &cobra.Command{
		Use:   "build [NAME]",
		Short: "Build a template from the base image: boot, warm up, snapshot",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Alias = "base"
			if len(args) == 1 {
				spec.Alias = args[0]
			}
			if console {
				spec.Console = os.Stderr
			}
			return withNode(flags, func(n *node.Node) error {
				start := time.Now()
				t, err := buildBase(cmd.Context(), n, spec)
				if err != nil {
					return err
				}
				fmt.Printf("%s (%s): %d vCPU, %d MiB, built in %.1f s\n", t.Alias, t.ID, t.CPUCount, t.MemoryMB, time.Since(start).Seconds())
				return nil
			})
		},
	}
	flags.register(cmd.Flags())
	cmd.Flags().IntVar(&spec.CPUCount, "vcpus", 1, "virtual CPUs")
	cmd.Flags().IntVar(&spec.MemoryMB, "memory", 256, "memory in MiB")
	cmd.Flags().BoolVar(&console, "console", false, "show the guest's console (slow)")
	return cmd
}

func newTemplateListCommand() *cobra.Command {
	var flags nodeFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List templates",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return withNode(flags, func(n *node.Node) error { return printTemplates(n.Templates(), asJSON) })
		},
	}
	flags.register(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printTemplates(list []node.Template, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(list)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tVCPUS\tMEMORY\tDISK\tCREATED")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d MiB\t%d MiB\t%s\n", t.Alias, t.ID, t.CPUCount, t.MemoryMB, t.DiskSizeMB, t.CreatedAt.Format(time.RFC3339))
	}
	return w.Flush()
}

func newTemplateRemoveCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a template",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return withNode(flags, func(n *node.Node) error { return n.RemoveTemplate(args[0]) })
		},
	}
	flags.register(cmd.Flags())
	return cmd
}
