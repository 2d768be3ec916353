package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// benchConsole shows progress on standard error: one line rewritten on a terminal, a line at each tenth
// elsewhere.
type benchConsole struct {
	mu       sync.Mutex // guards everything below
	w        io.Writer
	terminal bool
	started  time.Time
	scenario string
	tenth    int
	pending  bool // a progress line is on the terminal
	repeats  map[string]int
}

func newBenchConsole(w io.Writer) *benchConsole {
	f, isFile := w.(*os.File)
	return &benchConsole{w: w, terminal: isFile && term.IsTerminal(int(f.Fd())), started: time.Now(), repeats: map[string]int{}}
}

// maxRepeats is how often one message is shown: a server that is down fails the same way every time.
const maxRepeats = 3

func (c *benchConsole) log(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	c.repeats[line]++
	if c.repeats[line] > maxRepeats {
		return
	}
	c.clear()
	fmt.Fprintln(c.w, line)
}

func (c *benchConsole) progress(scenario string, done, planned int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if planned == 0 {
		return
	}
	line := fmt.Sprintf("%6.1f s  %-14s %3d %%  %d of %d", time.Since(c.started).Seconds(), scenario, 100*done/planned, done, planned)
	if c.terminal {
		fmt.Fprintf(c.w, "\r\x1b[K%s", line)
		c.pending = true
		return
	}
	tenth := 10 * done / planned
	if scenario == c.scenario && tenth == c.tenth {
		return
	}
	c.scenario, c.tenth = scenario, tenth
	fmt.Fprintln(c.w, line)
}

// end leaves the terminal on a fresh line.
func (c *benchConsole) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
}

func (c *benchConsole) clear() {
	if c.pending {
		fmt.Fprint(c.w, "\r\x1b[K")
		c.pending = false
	}
}
