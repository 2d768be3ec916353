// Package node runs the sandboxes of one host: their life cycle, the pool of VMM workers, templates, and
// what must be cleaned up after a crash.
package node
