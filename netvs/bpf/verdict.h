/* SPDX-License-Identifier: Apache-2.0 */
/* Counting, reporting and the policy's decision. */
#ifndef CELLA_VERDICT_H
#define CELLA_VERDICT_H

#include "types.h"

/* What a program learned of the packet before it decided. */
struct packet {
	struct attached sandbox;
	struct iphdr ip;
	__u16 source_port; /* host order */
	__u16 destination_port;
	__u8 first;    /* holds the transport header: unfragmented, or the first fragment */
	__u8 fragment; /* one of several */
	__u8 icmp_type;
};

static __always_inline int count(struct __sk_buff *skb, __u32 reason, struct counters **out)
{
	__u32 ifindex = skb->ifindex;
	struct counters *c = bpf_map_lookup_elem(&traffic, &ifindex);

	*out = c;
	if (!c || reason >= REASONS)
		return 0;
	c->packets[reason]++;
	if (reason == PASSED_OUT)
		c->bytes_out += skb->len;
	if (reason == PASSED_IN)
		c->bytes_in += skb->len;
	return 0;
}

static __always_inline int passed(struct __sk_buff *skb, __u32 way)
{
	struct counters *c;

	count(skb, way, &c);
	return TCX_NEXT; /* other programs at the tap have their turn */
}

/* A guest can't flood the log: each has so many events a second, on each CPU. */
static __always_inline int may_report(struct counters *c, __u64 now)
{
	__u64 second = now / 1000000000;

	if (c->second != second) {
		c->second = second;
		c->reported = 0;
	}
	return c->reported++ < events_per_second;
}

static __noinline int report(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	struct counters *c;
	struct event *e;
	__u64 now = bpf_ktime_get_ns();

	if (!p)
		return 0;
	count(skb, reason, &c);
	if (!c || reason == DROP_ARP_IDLE || reason == DROP_DETACHED)
		return 0;
	if (!may_report(c, now)) {
		c->events_dropped++;
		return 0;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		c->events_dropped++;
		return 0;
	}
	e->time = now;
	e->ifindex = skb->ifindex;
	e->epoch = p->sandbox.epoch;
	e->source = p->ip.saddr;
	e->destination = p->ip.daddr;
	e->source_port = p->source_port;
	e->destination_port = p->destination_port;
	e->length = skb->len > 0xffff ? 0xffff : skb->len;
	e->reason = reason;
	e->protocol = p->ip.protocol;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline int dropped(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	report(skb, p, reason);
	return TCX_DROP;
}

static __always_inline int find_sandbox(struct __sk_buff *skb, struct attached *a)
{
	__u32 ifindex = skb->ifindex;
	struct sandbox *s = bpf_map_lookup_elem(&sandboxes, &ifindex);

	if (!s)
		return 0;
	bpf_spin_lock(&s->lock);
	a->epoch = s->epoch;
	a->host_addr = s->host_addr;
	a->policy = s->policy;
	a->flags = s->flags;
	bpf_spin_unlock(&s->lock);
	return a->epoch != 0;
}

static __always_inline int is_blocked(__be32 addr)
{
	struct prefix key = { .len = 32, .addr = addr };
	__u32 *v = bpf_map_lookup_elem(&blocked, &key);

	return v && *v;
}

/* A later fragment has no ports: an allowed port lets it through, a denied one does not stop it. Its first fragment
 * was judged with the ports, and without that one the kernel never puts the packet together. */
static __always_inline int matches(struct rule *r, struct packet *p)
{
	if (r->protocol && r->protocol != p->ip.protocol)
		return 0;
	if (r->low == 0 && r->high == 0xffff)
		return 1;
	if (p->ip.protocol == IPPROTO_ICMP)
		return 0;
	if (!p->first)
		return r->allow;
	return p->destination_port >= r->low && p->destination_port <= r->high;
}

/* An address learned from an allowed name. As long as it is in use it is not forgotten: a download may take longer
 * than the name's time to live. */
static __always_inline int pinned(struct packet *p)
{
	struct pin key = { .epoch = p->sandbox.epoch, .addr = p->ip.daddr };
	__u64 *until = bpf_map_lookup_elem(&pins, &key);
	__u64 now = bpf_ktime_get_ns();

	if (!until || *until <= now)
		return 0;
	if (*until - now < PIN_IDLE_NS)
		*until = now + PIN_IDLE_NS;
	return 1;
}

/* The sandbox's policy for the packet's destination: the rules of the longest prefix, then learned addresses, then
 * the default. Rules that a shorter prefix adds were folded into the longer one when the trie was made. */
static __noinline int allowed(struct packet *p)
{
	struct prefix key = { .len = 32 };
	struct rules *rules;
	void *trie;
	__u32 index;

	if (!p)
		return 0;
	int denied = !(p->sandbox.flags & ALLOW_DEFAULT);
	key.addr = p->ip.daddr;
	index = p->sandbox.policy;
	if (p->sandbox.flags & HAS_RULES) {
		trie = bpf_map_lookup_elem(&policies, &index);
		if (!trie)
			return 0;
		rules = bpf_map_lookup_elem(trie, &key);
		if (rules) {
			for (int i = 0; i < MAX_RULES; i++) {
				if (i >= rules->n)
					break;
				if (matches(&rules->rule[i], p)) {
					if (rules->rule[i].allow)
						return 1;
					denied = 1;
					break;
				}
			}
		}
	}
	if (!denied)
		return 1;
	return (p->sandbox.flags & HAS_NAMES) && pinned(p);
}

#endif
