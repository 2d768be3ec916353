/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs share with the Go side: constants, map values, reasons. bpf2go makes Go types of the structs. */
#ifndef CELLA_TYPES_H
#define CELLA_TYPES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Marks on packets to a guest. The rule set puts MARK_ESTABLISHED on replies to flows that a guest opened; without
 * the rule set nothing carries it, and nothing reaches a guest. MARK_ANSWER is ours, on ARP and ping answers. */
#define MARK_ESTABLISHED 0x00ce0000
#define MARK_ANSWER 0x00cf0000
#define MARK_MASK 0x00ff0000

/* enum tcx_action_base, which Debian 12's headers don't have. */
#define TCX_NEXT -1
#define TCX_DROP 2

#define ETH_OFF 0
#define IP_OFF ((int)sizeof(struct ethhdr))
#define IP_LEN ((int)sizeof(struct iphdr))
#define L4_OFF (IP_OFF + IP_LEN)

#define IP_RESERVED 0x8000
#define IP_MORE 0x2000
#define IP_OFFSET 0x1fff

/* Bits of struct sandbox.flags. */
enum sandbox_flags {
	ALLOW_DEFAULT = 1, /* what no rule matches is allowed */
	HAS_RULES = 2,     /* the trie in policies has entries */
	HAS_NAMES = 4,     /* addresses learned from allowed names are in pins */
	HAS_DNS = 8,       /* port 53 of the gateway is the host's resolver */
};

/* Why a packet was dropped, or which way it went. Reasons count from REASON_FIRST_DROP. */
enum reason {
	PASSED_OUT = 0,
	PASSED_IN = 1,
	ANSWERED = 2,
	REASON_FIRST_DROP = 3,
	DROP_DETACHED = 3,        /* no sandbox is attached to the tap */
	DROP_MALFORMED = 4,       /* a length or version that can't be */
	DROP_ETHERTYPE = 5,       /* neither ARP nor IPv4 */
	DROP_IPV6 = 6,            /* refused as a whole */
	DROP_VLAN = 7,            /* tagged */
	DROP_SOURCE_MAC = 8,      /* not the guest's */
	DROP_DESTINATION_MAC = 9, /* neither the gateway's nor a broadcast for it */
	DROP_ARP = 10,            /* spoofed, or not a question */
	DROP_ARP_IDLE = 11,       /* harmless: an announcement, a probe, a question nobody answers */
	DROP_SOURCE_IP = 12,      /* not the guest's */
	DROP_OPTIONS = 13,        /* IPv4 options: source routes, record route */
	DROP_PROTOCOL = 14,       /* none of TCP, UDP, ICMP */
	DROP_ICMP_TYPE = 15,      /* neither a ping nor an error */
	DROP_FRAGMENT = 16,       /* a first fragment without the whole transport header */
	DROP_GATEWAY = 17,        /* a service that the gateway does not have */
	DROP_BLOCKED = 18,        /* a range that is never allowed */
	DROP_POLICY = 19,         /* the sandbox's policy */
	DROP_DESTINATION_IP = 20, /* to a guest, but not its address */
	DROP_UNSOLICITED = 21,    /* to a guest, but of no flow that it opened */
	DROP_FAILED = 22,         /* a rewrite failed */
	REASONS = 23,
};

/* One tap. The lock makes a change of several fields one: programs copy the value under it. */
struct sandbox {
	struct bpf_spin_lock lock;
	__u32 epoch;     /* number of the attachment, never used twice; 0: none */
	__be32 host_addr; /* the address the host knows it by */
	__u32 policy;    /* index of the live trie in policies */
	__u32 flags;     /* enum sandbox_flags */
};

/* A copy of it without the lock. */
struct attached {
	__u32 epoch;
	__be32 host_addr;
	__u32 policy;
	__u32 flags;
};

struct counters {
	__u64 packets[REASONS];
	__u64 bytes_out;
	__u64 bytes_in;
	__u64 second;         /* the second that reported counts in */
	__u64 reported;       /* events sent in it */
	__u64 events_dropped; /* not sent: over the limit, or the ring was full */
};

/* Key of a trie of IPv4 prefixes. */
struct prefix {
	__u32 len;
	__be32 addr;
};

#define MAX_RULES 8

/* A rule at a prefix: ports are inclusive, protocol 0 is any. */
struct rule {
	__u16 low;
	__u16 high;
	__u8 protocol;
	__u8 allow;
	__u16 pad;
};

/* All rules that hold at a prefix, allows first: the first that matches decides. */
struct rules {
	__u32 n;
	struct rule rule[MAX_RULES];
};

const struct rules *unused_rules __attribute__((unused)); /* for bpf2go */

/* Key of an address learned from a name that the policy allows. */
struct pin {
	__u32 epoch;
	__be32 addr;
};

/* A denied packet, for the log. */
struct event {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 ifindex;
	__u32 epoch;
	__be32 source;
	__be32 destination;
	__u16 source_port; /* host order; 0 where there is none */
	__u16 destination_port;
	__u16 length;
	__u8 reason;
	__u8 protocol;
};

const struct event *unused_event __attribute__((unused));

/* How long a learned address stays reachable after the last packet to it. */
#define PIN_IDLE_NS (120 * 1000000000ULL)

/* Set by the loader. */
volatile const __be32 guest_addr;
volatile const __be32 gateway_addr;
volatile const __be32 resolver_addr;
volatile const __u8 guest_mac[ETH_ALEN];
volatile const __u8 gateway_mac[ETH_ALEN];
volatile const __u32 events_per_second;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* ifindex */
	__type(value, struct sandbox);
} sandboxes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct counters);
} traffic SEC(".maps");

/* Ranges that no policy opens. The longest match decides; 0 is an operator's opening. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} blocked SEC(".maps");

/* Two tries for each tap: one live, one to fill (see policy.go). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_LPM_TRIE);
		__uint(max_entries, 16384);
		__uint(map_flags, BPF_F_NO_PREALLOC);
		__uint(key_size, sizeof(struct prefix)); /* clang 14 leaves their types out here */
		__uint(value_size, sizeof(struct rules));
	});
} policies SEC(".maps");

/* Addresses learned from allowed names, until when (CLOCK_MONOTONIC, ns). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pin);
	__type(value, __u64);
} pins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Reads what is nearly always in the packet's linear part without a call, and by one where it is not. */
static __always_inline int read_at(struct __sk_buff *skb, int off, void *to, int len)
{
	void *from = (void *)(long)skb->data + off;

	if (from + len <= (void *)(long)skb->data_end) {
		__builtin_memcpy(to, from, len);
		return 0;
	}
	return bpf_skb_load_bytes(skb, off, to, len);
}

#endif
