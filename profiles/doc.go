// Package profiles captures, merges and labels pprof profiles of the processes that a benchmark exercises.
package profiles
