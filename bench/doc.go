// Package bench measures cella through its public API, and the peers that a user would pick instead
// beside it in the same run. It produces result.json (package reports) and claims nothing else.
package bench
