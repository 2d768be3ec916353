package main

import (
	"errors"
	"fmt"
	"io"
)

// exitError carries a process exit code through cobra, for commands that pass on another's. Nothing is printed
// for it: the other has said what there was to say.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// codedError is an error that is printed and has an exit code of its own.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// withExit gives an error an exit code.
func withExit(err error, code int) error { return codedError{err, code} }

// exitCode is what the process exits with for err.
func exitCode(err error) int {
	var passed exitError
	if errors.As(err, &passed) {
		return int(passed)
	}
	var coded codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	return 1
}

// printError tells the user what went wrong.
func printError(w io.Writer, err error) {
	var passed exitError
	if !errors.As(err, &passed) {
		fmt.Fprintln(w, "cella: "+err.Error())
	}
}
