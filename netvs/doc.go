// Package netvs will be the network of sandboxes: taps, eBPF isolation and egress policy. Nothing is built
// yet; sandboxes have no network interface until it is, and are reached through vsock alone.
package netvs
