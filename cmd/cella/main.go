// Command cella runs untrusted code in KVM microVMs behind the E2B API.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"cella.dev/cella/lab/inside"
)

func main() {
	if os.Args[0] == inside.Path {
		inside.Main() // Started by the lab's kernel, which adds words of its own to the arguments.
	}
	if err := newRoot().Execute(); err != nil {
		printError(os.Stderr, err)
		os.Exit(exitCode(err))
	}
}

// newRoot lists the commands; each is built in a file of its own name.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "cella",
		Short:         "Sandboxes with a kernel of their own, behind the E2B API",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newBenchCommand(), newDoctorCommand(), newKeysCommand(), newLabCommand(), newRunCommand(), newServeCommand(),
		newSetupCommand(), newTemplateCommand(), newUpCommand(), newVMMCommand())
	explainArguments(root)
	return root
}

// explainArguments makes wrong arguments an error that shows the right ones, for every command below parent. A
// command that only groups others takes none: cobra would answer an unknown one with the help and exit code 0.
func explainArguments(parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		explainArguments(cmd)
		if !cmd.Runnable() {
			cmd.Args = cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		check := cmd.Args
		if check == nil {
			continue
		}
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w; usage: %s (see %s --help)", err, cmd.UseLine(), cmd.CommandPath())
			}
			return nil
		}
	}
}
