// Package testnet is a small world of network namespaces in which sandboxes' network is tested and measured without
// a VM. The host has one uplink, to a world that knows no route back to sandboxes:
//
//	guest g0 ═ frames copied ═ tap │ host 203.0.113.1 ── veth ── 203.0.113.7, 198.51.100.20 world
//
// A guest is a namespace with a kernel's own TCP/IP, as in a VM; the copying of frames stands in for the VMM.
// Everything happens in the caller's network namespace, so call Enter first.
package testnet

// Addresses of the world. All are in ranges for documentation, which no policy blocks by itself.
const (
	Uplink = "203.0.113.1"
	World  = "203.0.113.7"
	World2 = "198.51.100.20"
)
