/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of addresses, with every checksum that covers them. */
#ifndef CELLA_REWRITE_H
#define CELLA_REWRITE_H

#include "types.h"

#define IP_CHECK_OFF ((int)__builtin_offsetof(struct iphdr, check))
#define IP_SOURCE_OFF ((int)__builtin_offsetof(struct iphdr, saddr))
#define IP_DESTINATION_OFF ((int)__builtin_offsetof(struct iphdr, daddr))
#define TCP_CHECK_OFF 16
#define UDP_CHECK_OFF 6
#define ICMP_CHECK_OFF 2
#define ICMP_LEN 8

static __always_inline int transport_check_off(__u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return TCP_CHECK_OFF;
	if (protocol == IPPROTO_UDP)
		return UDP_CHECK_OFF;
	return -1;
}

/* An Internet checksum after four of the bytes that it covers changed (RFC 1624, equation 3). */
static __always_inline __u16 checksum_after(__u16 check, __be32 from, __be32 to)
{
	__u32 sum = (__u16)~check;

	sum += (~from & 0xffff) + (~from >> 16) + (to & 0xffff) + (to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Replaces one address of the outer header. l4 is the transport header's offset, or 0 for a later fragment. The
 * helpers know of checksums that the guest left to the device (CHECKSUM_PARTIAL), and of UDP without one. */
static __always_inline int replace_addr(struct __sk_buff *skb, int field, __be32 from, __be32 to, __u8 protocol, int l4)
{
	int off = transport_check_off(protocol);
	__u64 flags = BPF_F_PSEUDO_HDR | sizeof(to);

	if (protocol == IPPROTO_UDP)
		flags |= BPF_F_MARK_MANGLED_0;
	if (l4 && off >= 0 && bpf_l4_csum_replace(skb, l4 + off, from, to, flags))
		return -1;
	struct iphdr *ip = (void *)(long)skb->data + IP_OFF;
	if ((void *)(ip + 1) <= (void *)(long)skb->data_end) {
		ip->check = checksum_after(ip->check, from, to);
		*(__be32 *)((void *)ip + field) = to;
		return 0;
	}
	if (bpf_l3_csum_replace(skb, IP_OFF + IP_CHECK_OFF, from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, IP_OFF + field, &to, sizeof(to), 0);
}

/* Replaces one address of the header that an ICMP error quotes. The quoted header's own checksum makes up for the
 * change, so that the ICMP checksum changes only with the quoted transport checksum, where that is in the packet. */
static __always_inline int replace_quoted_addr(struct __sk_buff *skb, int icmp, int field, __be32 from, __be32 to)
{
	int quoted = icmp + ICMP_LEN, off, l4;
	struct iphdr ip;
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, quoted, &ip, sizeof(ip)))
		return -1;
	if (bpf_l3_csum_replace(skb, quoted + IP_CHECK_OFF, from, to, sizeof(to)))
		return -1;
	if (bpf_skb_store_bytes(skb, quoted + field, &to, sizeof(to), 0))
		return -1;
	off = transport_check_off(ip.protocol);
	if (off < 0 || (ip.frag_off & bpf_htons(IP_OFFSET)))
		return 0;
	l4 = quoted + ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, l4 + off, &before, sizeof(before)))
		return 0; /* not quoted that far */
	if (before == 0 && ip.protocol == IPPROTO_UDP)
		return 0;
	if (bpf_l4_csum_replace(skb, l4 + off, from, to, sizeof(to)))
		return -1;
	if (bpf_skb_load_bytes(skb, l4 + off, &after, sizeof(after)))
		return -1;
	return bpf_l4_csum_replace(skb, icmp + ICMP_CHECK_OFF, before, after, sizeof(after));
}

#endif
