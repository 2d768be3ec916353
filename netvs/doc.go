// Package netvs is the network of sandboxes: isolation and egress policy by eBPF at each sandbox's tap.
//
//	guest ──virtio-net──▶ tap ─▶ from_guest ──▶ conntrack, masquerade ──▶ the world
//	169.254.0.21               (checks, policy,                            │
//	      ◀───────────── tap ◀── then 10.77.x.y) ◀── to_guest ◀── replies ─┘
//
// Every guest has the same address, MAC and gateway inside, so nothing in it changes after a restore; the tap's
// index says whose packet it is. The program at the tap drops what is forged, answers ARP and pings of the gateway,
// judges the destination, and only then gives the packet its host-side address. The kernel's conntrack does the rest.
//
// What exists: the programs (bpf/), policies of the E2B shape (Request, Policy) and their live replacement, the pool of
// taps, the nftables rule set with its limit of connections, taking over from a former process, counters and denied
// packets, the resolver. It is tested on the machine: programs packet by packet, everything together between network
// namespaces. What does not exist: limits of bandwidth, checks of TLS and HTTP names, secrets at egress. Package node
// connects sandboxes to it. docs/network.md tells the rest.
package netvs
