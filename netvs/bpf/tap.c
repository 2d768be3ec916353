// SPDX-License-Identifier: Apache-2.0
/* The two programs at a sandbox's tap. from_guest sees what the guest sends, before the host does anything with it;
 * to_guest sees what the host is about to give it. Every guest has the same address, MAC and gateway; the tap's index
 * says whose packet it is. The kernel's conntrack masquerades behind us. */
#include "types.h"
#include "rewrite.h"
#include "verdict.h"

#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define DNS_PORT 53

static __always_inline int is_mac(const __u8 *mac, const volatile __u8 *want)
{
	for (int i = 0; i < ETH_ALEN; i++)
		if (mac[i] != want[i])
			return 0;
	return 1;
}

static __always_inline int is_broadcast(const __u8 *mac)
{
	return (mac[0] & mac[1] & mac[2] & mac[3] & mac[4] & mac[5]) == 0xff;
}

static __always_inline void set_mac(__u8 *mac, const volatile __u8 *to)
{
	for (int i = 0; i < ETH_ALEN; i++)
		mac[i] = to[i];
}

static __always_inline int is_icmp_error(__u8 type)
{
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER_PROBLEM;
}

/* Sends the packet, which holds the answer by now, back to the guest. */
static __always_inline int answer(struct __sk_buff *skb)
{
	struct counters *c;

	count(skb, ANSWERED, &c);
	skb->mark = MARK_ANSWER;
	return bpf_redirect(skb->ifindex, 0);
}

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

/* Ethernet ARP for IPv4 (RFC 826). */
struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__u8 sender_addr[4];
	__u8 target_mac[ETH_ALEN];
	__u8 target_addr[4];
} __attribute__((packed));

/* Answers the one question a guest needs answered: who has the gateway's address. */
static __always_inline int from_guest_arp(struct __sk_buff *skb, struct ethhdr *eth, struct packet *p)
{
	__be32 sender, target, gateway = gateway_addr;
	struct arp arp;

	if (bpf_skb_load_bytes(skb, IP_OFF, &arp, sizeof(arp)))
		return dropped(skb, p, DROP_MALFORMED);
	if (arp.hardware != bpf_htons(ARP_ETHERNET) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_len != ETH_ALEN || arp.protocol_len != 4)
		return dropped(skb, p, DROP_MALFORMED);
	__builtin_memcpy(&sender, arp.sender_addr, 4);
	__builtin_memcpy(&target, arp.target_addr, 4);
	p->ip.saddr = sender;
	p->ip.daddr = target;
	if (!is_mac(arp.sender_mac, guest_mac) || (sender != guest_addr && sender != 0))
		return dropped(skb, p, DROP_ARP);
	if (arp.operation != bpf_htons(ARP_REQUEST))
		return dropped(skb, p, DROP_ARP);
	if (target != gateway)
		return dropped(skb, p, DROP_ARP_IDLE);

	set_mac(eth->h_dest, guest_mac);
	set_mac(eth->h_source, gateway_mac);
	arp.operation = bpf_htons(ARP_REPLY);
	__builtin_memcpy(arp.target_mac, arp.sender_mac, ETH_ALEN);
	__builtin_memcpy(arp.target_addr, &sender, 4);
	set_mac(arp.sender_mac, gateway_mac);
	__builtin_memcpy(arp.sender_addr, &gateway, 4);
	if (bpf_skb_store_bytes(skb, ETH_OFF, eth, sizeof(*eth), 0) || bpf_skb_store_bytes(skb, IP_OFF, &arp, sizeof(arp), 0))
		return dropped(skb, p, DROP_FAILED);
	return answer(skb);
}

/* Turns a ping of the gateway into its answer. Swapped addresses leave the IP checksum as it is. */
static __always_inline int answer_ping(struct __sk_buff *skb, struct ethhdr *eth, struct packet *p)
{
	__be32 addrs[2] = { p->ip.daddr, p->ip.saddr };
	__be16 from = bpf_htons(ICMP_ECHO << 8), to = bpf_htons(ICMP_ECHO_REPLY << 8);
	__u8 type = ICMP_ECHO_REPLY;

	set_mac(eth->h_dest, guest_mac);
	set_mac(eth->h_source, gateway_mac);
	if (bpf_skb_store_bytes(skb, ETH_OFF, eth, sizeof(*eth), 0) ||
	    bpf_skb_store_bytes(skb, IP_OFF + IP_SOURCE_OFF, addrs, sizeof(addrs), 0) ||
	    bpf_l4_csum_replace(skb, L4_OFF + ICMP_CHECK_OFF, from, to, sizeof(to)) ||
	    bpf_skb_store_bytes(skb, L4_OFF, &type, sizeof(type), 0))
		return dropped(skb, p, DROP_FAILED);
	return answer(skb);
}

/* Reads the ports or the ICMP type of a packet that holds its transport header at l4. */
static __always_inline int read_transport(struct __sk_buff *skb, struct packet *p, int l4)
{
	__u8 head[8];
	__u8 last;
	int len = bpf_ntohs(p->ip.tot_len) - (l4 - IP_OFF);

	/* The last byte of the smallest header must be inside of the IP packet, not only of the frame. */
	if (len < (p->ip.protocol == IPPROTO_TCP ? 20 : 8))
		return -1;
	if (read_at(skb, l4, head, sizeof(head)))
		return -1;
	if (p->ip.protocol == IPPROTO_ICMP) {
		p->icmp_type = head[0];
		return 0;
	}
	p->source_port = head[0] << 8 | head[1];
	p->destination_port = head[2] << 8 | head[3];
	if (p->ip.protocol == IPPROTO_UDP)
		return (head[4] << 8 | head[5]) < 8 ? -1 : 0;
	if (read_at(skb, l4 + 12, &last, 1))
		return -1;
	return (last >> 4) < 5 || (last >> 4) * 4 > len ? -1 : 0;
}

/* Checks the IP header of a guest's packet: everything that needs no table. Returns a reason, or 0. */
static __always_inline int check_header(struct __sk_buff *skb, struct packet *p)
{
	__u16 total, frag;

	if (read_at(skb, IP_OFF, &p->ip, sizeof(p->ip)))
		return DROP_MALFORMED;
	total = bpf_ntohs(p->ip.tot_len);
	frag = bpf_ntohs(p->ip.frag_off);
	if (p->ip.version != 4 || p->ip.ihl < 5 || total < p->ip.ihl * 4 || total > skb->len - IP_OFF)
		return DROP_MALFORMED;
	if (frag & IP_RESERVED)
		return DROP_MALFORMED;
	if (p->ip.saddr != guest_addr)
		return DROP_SOURCE_IP;
	if (p->ip.ihl > 5)
		return DROP_OPTIONS;
	if (p->ip.protocol != IPPROTO_TCP && p->ip.protocol != IPPROTO_UDP && p->ip.protocol != IPPROTO_ICMP)
		return DROP_PROTOCOL;
	p->fragment = (frag & (IP_MORE | IP_OFFSET)) != 0;
	p->first = (frag & IP_OFFSET) == 0;
	if (p->first && read_transport(skb, p, L4_OFF))
		return p->fragment ? DROP_FRAGMENT : DROP_MALFORMED;
	if (p->first && p->ip.protocol == IPPROTO_ICMP && p->icmp_type != ICMP_ECHO &&
	    (p->fragment || !is_icmp_error(p->icmp_type)))
		return DROP_ICMP_TYPE;
	return 0;
}

/* The quote in a guest's ICMP error must be of a packet to it, and is rewritten like the header. */
static __always_inline int rewrite_error_out(struct __sk_buff *skb, struct packet *p)
{
	__be32 to;

	if (bpf_ntohs(p->ip.tot_len) < IP_LEN + ICMP_LEN + IP_LEN)
		return DROP_MALFORMED;
	if (bpf_skb_load_bytes(skb, L4_OFF + ICMP_LEN + IP_DESTINATION_OFF, &to, sizeof(to)))
		return DROP_MALFORMED;
	if (to != guest_addr)
		return DROP_SOURCE_IP;
	if (replace_quoted_addr(skb, L4_OFF, IP_DESTINATION_OFF, to, p->sandbox.host_addr))
		return DROP_FAILED;
	return 0;
}

static __always_inline int is_dns(struct packet *p)
{
	return p->sandbox.flags & HAS_DNS && p->first && !p->fragment && p->ip.protocol != IPPROTO_ICMP &&
	       p->destination_port == DNS_PORT;
}

/* Judges the packet by its destination, then gives it the sandbox's host-side address. */
static __always_inline int from_guest_ip(struct __sk_buff *skb, struct ethhdr *eth, struct packet *p)
{
	int reason = check_header(skb, p), l4 = p->first ? L4_OFF : 0;

	if (reason)
		return dropped(skb, p, reason);
	if (p->ip.daddr == gateway_addr) {
		if (p->ip.protocol == IPPROTO_ICMP && p->first && !p->fragment && p->icmp_type == ICMP_ECHO)
			return answer_ping(skb, eth, p);
		if (!is_dns(p))
			return dropped(skb, p, DROP_GATEWAY);
		if (replace_addr(skb, IP_DESTINATION_OFF, p->ip.daddr, resolver_addr, p->ip.protocol, l4))
			return dropped(skb, p, DROP_FAILED);
	} else if (is_blocked(p->ip.daddr)) {
		return dropped(skb, p, DROP_BLOCKED);
	} else if (!allowed(p)) {
		return dropped(skb, p, DROP_POLICY);
	}
	if (p->ip.protocol == IPPROTO_ICMP && p->first && is_icmp_error(p->icmp_type)) {
		reason = rewrite_error_out(skb, p);
		if (reason)
			return dropped(skb, p, reason);
	}
	if (replace_addr(skb, IP_SOURCE_OFF, p->ip.saddr, p->sandbox.host_addr, p->ip.protocol, l4))
		return dropped(skb, p, DROP_FAILED);
	return passed(skb, PASSED_OUT);
}

SEC("tcx/ingress")
int from_guest(struct __sk_buff *skb)
{
	struct packet p = {};
	struct ethhdr eth;

	if (!find_sandbox(skb, &p.sandbox))
		return dropped(skb, &p, DROP_DETACHED);
	if (skb->vlan_present)
		return dropped(skb, &p, DROP_VLAN);
	if (read_at(skb, ETH_OFF, &eth, sizeof(eth)))
		return dropped(skb, &p, DROP_MALFORMED);
	if (!is_mac(eth.h_source, guest_mac))
		return dropped(skb, &p, DROP_SOURCE_MAC);
	if (eth.h_proto == bpf_htons(ETH_P_IPV6))
		return dropped(skb, &p, DROP_IPV6);
	if (eth.h_proto == bpf_htons(ETH_P_ARP)) {
		if (!is_broadcast(eth.h_dest) && !is_mac(eth.h_dest, gateway_mac))
			return dropped(skb, &p, DROP_DESTINATION_MAC);
		return from_guest_arp(skb, &eth, &p);
	}
	if (eth.h_proto != bpf_htons(ETH_P_IP))
		return dropped(skb, &p, DROP_ETHERTYPE);
	if (!is_mac(eth.h_dest, gateway_mac))
		return dropped(skb, &p, DROP_DESTINATION_MAC);
	return from_guest_ip(skb, &eth, &p);
}

/* The quote in an ICMP error to a guest is of a packet it sent: it gets to see its own address in it. */
static __always_inline int rewrite_error_in(struct __sk_buff *skb, struct packet *p, int l4)
{
	__be32 addrs[2];

	if (bpf_skb_load_bytes(skb, l4 + ICMP_LEN + IP_SOURCE_OFF, addrs, sizeof(addrs)))
		return DROP_MALFORMED;
	if (addrs[0] != p->sandbox.host_addr)
		return DROP_UNSOLICITED;
	if (replace_quoted_addr(skb, l4, IP_SOURCE_OFF, addrs[0], guest_addr))
		return DROP_FAILED;
	if (addrs[1] == resolver_addr && replace_quoted_addr(skb, l4, IP_DESTINATION_OFF, addrs[1], gateway_addr))
		return DROP_FAILED;
	return 0;
}

/* Undoes the addresses of a packet that the rule set found to be of a flow the guest opened. */
static __always_inline int to_guest_ip(struct __sk_buff *skb, struct packet *p)
{
	int reason = 0, l4 = IP_OFF + p->ip.ihl * 4;

	if (p->ip.protocol == IPPROTO_ICMP && p->first) {
		if (bpf_skb_load_bytes(skb, l4, &p->icmp_type, 1))
			return dropped(skb, p, DROP_MALFORMED);
		if (is_icmp_error(p->icmp_type))
			reason = rewrite_error_in(skb, p, l4);
		else if (p->icmp_type != ICMP_ECHO_REPLY)
			reason = DROP_ICMP_TYPE;
		if (reason)
			return dropped(skb, p, reason);
	}
	if (!p->first)
		l4 = 0;
	if (p->ip.saddr == resolver_addr &&
	    replace_addr(skb, IP_SOURCE_OFF, p->ip.saddr, gateway_addr, p->ip.protocol, l4))
		return dropped(skb, p, DROP_FAILED);
	if (replace_addr(skb, IP_DESTINATION_OFF, p->ip.daddr, guest_addr, p->ip.protocol, l4))
		return dropped(skb, p, DROP_FAILED);
	return passed(skb, PASSED_IN);
}

SEC("tcx/egress")
int to_guest(struct __sk_buff *skb)
{
	__u32 mark = skb->mark & MARK_MASK;
	struct packet p = {};
	struct ethhdr eth;

	if (mark == MARK_ANSWER)
		return TCX_NEXT;
	if (!find_sandbox(skb, &p.sandbox))
		return dropped(skb, &p, DROP_DETACHED);
	if (read_at(skb, ETH_OFF, &eth, sizeof(eth)) || skb->vlan_present)
		return dropped(skb, &p, DROP_MALFORMED);
	if (eth.h_proto == bpf_htons(ETH_P_IPV6))
		return dropped(skb, &p, DROP_IPV6);
	if (eth.h_proto != bpf_htons(ETH_P_IP))
		return dropped(skb, &p, DROP_ETHERTYPE);
	if (read_at(skb, IP_OFF, &p.ip, sizeof(p.ip)) || p.ip.version != 4 || p.ip.ihl < 5)
		return dropped(skb, &p, DROP_MALFORMED);
	if (p.ip.daddr != p.sandbox.host_addr)
		return dropped(skb, &p, DROP_DESTINATION_IP);
	if (mark != MARK_ESTABLISHED)
		return dropped(skb, &p, DROP_UNSOLICITED);
	p.first = (p.ip.frag_off & bpf_htons(IP_OFFSET)) == 0;
	return to_guest_ip(skb, &p);
}

/* No helper that asks for the GPL is used. */
char __license[] SEC("license") = "Apache-2.0";
