// Package gateway speaks the E2B API over one listener: the control plane (REST) and the data plane (a
// reverse proxy into sandboxes, which are reached through vsock and never by network). It holds no state of
// its own that matters: keys are files, sandboxes are the node's.
//
//	            ┌ E2b-Sandbox-Id, <port>-<id>.domain ─▶ admit ─▶ exchange ─▶ Node.Dial ─▶ agent, or a port inside
//	client ─▶ findTarget                                (tokens)  (bodies both ways, 101 spliced)
//	            └ anything else ─▶ find route ─▶ authenticate ─▶ handler ─▶ Node
//
// What comes from a guest is as hostile as what comes from a client: heads, interim answers and metrics are
// bounded, framing is parsed and written anew in both directions, and a body cut short never looks whole.
package gateway
