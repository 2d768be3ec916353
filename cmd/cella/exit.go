package main

import (
	"errors"
	"fmt"
)

// exitError carries a process exit code through cobra, for commands that pass on another's.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func exitCode(err error) int {
	var e exitError
	if errors.As(err, &e) {
		return int(e)
	}
	return 1
}
