package netvs

import (
	"fmt"
	"os"
	"testing"

	"cella.dev/cella/netvs/testnet"
)

// TestMain runs the tests in network and mount namespaces of their own: they leave nothing on the host, and nothing
// of the host gets in their way. They need root.
func TestMain(m *testing.M) {
	if err := testnet.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Fprintln(os.Stderr, crash(dir)) // comes back only on an error
		os.Exit(1)
	}
	os.Exit(m.Run())
}
