// Package cluster will place sandboxes on many hosts. Nothing is built yet; cella serves one host.
package cluster
