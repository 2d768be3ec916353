// Command cella runs untrusted code in KVM microVMs behind the E2B API.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if err := newRoot().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "cella: "+err.Error())
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
	root.AddCommand(newBenchCommand())
	return root
}
