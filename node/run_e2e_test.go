//go:build e2e

package node_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCellaRun runs the command itself: it passes on output and exit code, and takes its run directory with it.
func TestCellaRun(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	for _, flags := range [][]string{nil, {"--cold"}} {
		args := append([]string{"run", "--state", state(t), "--run", run}, flags...)
		cmd := exec.Command(os.Getenv("CELLA_E2E_CELLA"), append(args, "base", "--", "sh", "-c", "echo out; echo err >&2; exit 3")...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || stdout.String() != "out\n" || stderr.String() != "err\n" {
			t.Errorf("%v: %v, stdout %q, stderr %q; want exit code 3, out, err", flags, err, stdout.String(), stderr.String())
		}
	}
	left, err := filepath.Glob(run + "*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}
