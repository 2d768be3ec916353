// Package profiles captures, merges, labels, diffs and writes pprof profiles of the processes that a
// benchmark exercises. What it writes opens in `go tool pprof`.
//
//	Fetch (net/http/pprof of a process) ─┐
//	Local (this process)                 ├─▶ Label ─▶ Merge ─▶ Diff against a baseline ─▶ Write
//	                                     ┘
package profiles
