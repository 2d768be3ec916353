// Command mute is an init for tests: a guest that boots and never says a word.
package main

import "golang.org/x/sys/unix"

func main() {
	for {
		unix.Pause()
	}
}
