// Package netbench measures the network of sandboxes (package netvs) beside what one would use instead: a plain tap
// with the same policy in nftables, in the same run. Both carry the same guest, a network namespace whose frames a
// goroutine copies to the tap as a VMM does, to the same world (package testnet). It needs no VM, so it runs on the
// machine itself: call testnet.Enter first.
//
// Unlike the rest of bench it does not go through the public API: a packet has no HTTP.
package netbench
