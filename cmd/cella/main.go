// Command cella runs untrusted code in KVM microVMs behind the E2B API.
package main

import (
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
	return root
}
