package main

import (
	"io"
	"strings"
	"testing"
)

func TestWrongArgumentsAreAnErrorThatShowsTheRightOnes(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"run", "usage: cella run TEMPLATE -- COMMAND [ARGUMENT...]"},
		{"run base", "usage: cella run TEMPLATE -- COMMAND [ARGUMENT...]"},
		{"keys rm", "usage: cella keys rm ID..."},
		{"keys nosuch", `unknown command "nosuch" for "cella keys"`},
		{"template nosuch", `unknown command "nosuch" for "cella template"`},
		{"lab nosuch", `unknown command "nosuch" for "cella lab"`},
		{"up nosuch", `unknown command "nosuch" for "cella up"`},
	} {
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetArgs(strings.Fields(tt.args))
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("cella %s: %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}

func TestGroupOfCommandsAloneShowsItsHelp(t *testing.T) {
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"keys"})
	if err := root.Execute(); err != nil || !strings.Contains(out.String(), "Remove keys") {
		t.Errorf("cella keys: %v, %q; want its commands", err, out.String())
	}
}
