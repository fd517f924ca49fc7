// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Forwards packets to the next hop of the longest matching prefix. Looks up the destination in the
 * tables of myelin_packet::routes, which the loader copies unchanged into arrays. Decrements the
 * TTL (hop limit) and writes the next hop's Ethernet address.
 *
 * Drops a packet without a route, with an expired TTL, or above the MTU that must not be
 * fragmented. Reports the last two to the agent, which sends an ICMP message to the sender. IPv6
 * packets that stay on their link pass unchanged.
 */
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>

#include "next.h"
#include "report.h"

/* This bit is set in an entry that holds the number of a block or a tree, not of a next hop. */
#define IS_TABLE 0x80000000u
/* Largest number of levels of a tree. */
#define MAX_DEPTH 7
#define KEYS	  8

struct direct {
	__u32 entries[1 << 16];
};

struct block {
	__u32 entries[256];
};

/* Same layout as myelin_packet::lpm::Node. */
struct node {
	__u64 keys[KEYS];
};

/* Same layout as myelin_packet::lpm::Leaf. */
struct leaf {
	__u32 values[KEYS];
};

/* Same layout as myelin_packet::lpm::Tree. */
struct tree {
	__u32 root;
	__u32 depth;
	__u32 leaf;
	__u32 inner;
};

/* Same layout as myelin_packet::routes::NextHop. */
struct next_hop {
	__u8 destination[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__u32 writes;
};

/* Bits of `writes`. */
enum {
	WRITES_DESTINATION = 1 << 0,
	WRITES_SOURCE = 1 << 1,
};

/* Same layout as myelin_kernel::router::RouterInstance. */
const volatile struct router {
	struct hop hop;
	__u32 mtu;	 /* longest IP packet of the next link; 0: any */
	__u32 icmp_rate; /* ICMP messages a second */
	__u32 has_v4;	 /* the router has an IPv4 address, so it reports IPv4 packets */
	__u32 has_v6;
	struct tree first; /* the tree for the first half of an IPv6 address */
} INSTANCE INSTANCE_SECTION;

/* The loader sets the numbers of entries. */
#define TABLE(map, element)                        \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__type(key, __u32);                \
		__type(value, struct element);     \
		__uint(max_entries, 1);            \
	} map SEC(".maps")

TABLE(direct4, direct);
TABLE(blocks4, block);
TABLE(trees6, tree);
TABLE(nodes6, node);
TABLE(leaves6, leaf);
TABLE(hops, next_hop);

static __always_inline __u32 look_up_block(__u32 entry, __u32 at)
{
	__u32 number = entry & ~IS_TABLE;
	const struct block *block = bpf_map_lookup_elem(&blocks4, &number);

	return block ? block->entries[at & 0xff] : 0;
}

static __always_inline __u32 look_up4(__be32 address)
{
	__u32 zero = 0, host = bpf_ntohl(address);
	const struct direct *direct = bpf_map_lookup_elem(&direct4, &zero);

	if (!direct)
		return 0;

	__u32 entry = direct->entries[host >> 16];

	if (entry & IS_TABLE)
		entry = look_up_block(entry, host >> 8);
	if (entry & IS_TABLE)
		entry = look_up_block(entry, host);
	return entry;
}

/* Returns 1 if a < b, else 0, without a branch: the borrow of a subtractor. */
static __always_inline __u32 is_below(__u64 a, __u64 b)
{
	__u64 borrow = ((~a & b) | ((~a | b) & (a - b))) >> 63;

	/* Prevents a branch, because the verifier would follow each path separately. */
	barrier_var(borrow);
	return borrow;
}

/* Returns the entry of the interval that contains `address`. */
static __always_inline __u32 search_tree(__u32 root, __u32 depth, __u32 leaf, __u32 inner,
					 __u64 address)
{
	__u32 node = 0;

#pragma clang loop unroll(disable)
	for (__u32 level = 1; level <= MAX_DEPTH; level++) {
		__u32 number = root + node, keys_above = 0;
		const struct node *at = bpf_map_lookup_elem(&nodes6, &number);

		if (!at)
			return 0;
#pragma unroll
		for (int i = 1; i < KEYS; i++)
			keys_above += is_below(address, at->keys[i]);

		__u32 rank = KEYS - 1 - keys_above;

		if (level == depth) {
			number = leaf + node - inner;

			const struct leaf *values = bpf_map_lookup_elem(&leaves6, &number);

			return values ? values->values[rank & (KEYS - 1)] : 0;
		}
		node = node * KEYS + 1 + rank;
	}
	return 0;
}

static __always_inline __u32 look_up6(const struct in6_addr *address)
{
	const __be32 *words = address->in6_u.u6_addr32;
	__u64 high = (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
	__u32 entry = search_tree(INSTANCE.first.root, INSTANCE.first.depth, INSTANCE.first.leaf,
				  INSTANCE.first.inner, high);

	if (!(entry & IS_TABLE))
		return entry;

	__u64 low = (__u64)bpf_ntohl(words[2]) << 32 | bpf_ntohl(words[3]);
	__u32 number = entry & ~IS_TABLE;
	const struct tree *tree = bpf_map_lookup_elem(&trees6, &number);

	return tree ? search_tree(tree->root, tree->depth, tree->leaf, tree->inner, low) : 0;
}

/* Decrements the TTL and corrects the header's checksum (RFC 1624). */
static __always_inline void decrement_ttl(struct iphdr *ip)
{
	__u32 sum = (__u16)~ip->check;

	/* Protocol and TTL are one word. Ones' complement works in either byte order. */
	sum += (__u16) ~(ip->ttl | ip->protocol << 8);
	ip->ttl--;
	sum += (__u16)(ip->ttl | ip->protocol << 8);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	ip->check = ~sum;
}

static __always_inline void decrement_hop_limit(hook_ctx *ctx, struct ipv6hdr *ip)
{
#if defined(MYELIN_HOOK_TC)
	__u32 sum = (__u16) ~(ip->nexthdr | ip->hop_limit << 8);

	/* No field compensates the change, so correct the NIC's sum, if the packet has such a sum.
	 */
	sum += (__u16)(ip->nexthdr | (ip->hop_limit - 1) << 8);
	bpf_csum_update(ctx, (sum >> 16) + (sum & 0xffff));
#endif
	ip->hop_limit--;
}

#define HOP_LIMIT_OF_LINK 255
#define DONT_FRAGMENT	  0x4000

/* Same rule as myelin_packet::link_scope. */
static __always_inline bool stays_on_link(const struct ipv6hdr *ip, const void *data_end)
{
	const __u8 *source = ip->saddr.in6_u.u6_addr8, *destination = ip->daddr.in6_u.u6_addr8;
	const __u8 *type = (const void *)(ip + 1);

	if ((source[0] == 0xfe && (source[1] & 0xc0) == 0x80) ||
	    (destination[0] == 0xfe && (destination[1] & 0xc0) == 0x80))
		return true;
	if (destination[0] == 0xff && ((destination[1] & 0xf) == 1 || (destination[1] & 0xf) == 2))
		return true;
	/* Neighbour discovery. */
	return ip->nexthdr == IPPROTO_ICMPV6 && ip->hop_limit == HOP_LIMIT_OF_LINK &&
	       (const void *)(type + 1) <= data_end && *type >= 133 && *type <= 137;
}

/* Reports the packet if the router has an address of its family. Returns false: drop. */
static __always_inline bool report_and_drop(hook_ctx *ctx, bool is_ipv6, __u32 reason)
{
	if (is_ipv6 ? INSTANCE.has_v6 : INSTANCE.has_v4)
		report_packet(ctx, reason, INSTANCE.icmp_rate);
	return false;
}

/* Returns whether an IP packet of this length exceeds the MTU. The segments of a GSO skb count. */
static __always_inline bool is_too_long(const hook_ctx *ctx, const struct headers *headers,
					__u32 length)
{
#if defined(MYELIN_HOOK_TC)
	if (ctx->gso_size)
		length = headers->payload - headers->l3 + ctx->gso_size;
#endif
	return INSTANCE.mtu && length > INSTANCE.mtu;
}

static __always_inline bool route_packet(hook_ctx *ctx)
{
	const void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct headers headers;
	__u32 number;

	if (!hook_headers(ctx, &headers) || (const void *)(ethernet + 1) > data_end)
		return false;

	void *l3 = (void *)(long)ctx->data + (headers.l3 & MAX_OFFSET);

	if (headers.flags & FLAG_IPV6) {
		struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		if (stays_on_link(ip, data_end))
			return true;
		number = look_up6(&ip->daddr);
		if (!number)
			return false;
		if (ip->hop_limit <= 1)
			return report_and_drop(ctx, true, REPORT_TIME_EXCEEDED);
		if (is_too_long(ctx, &headers, bpf_ntohs(ip->payload_len) + sizeof(*ip)))
			return report_and_drop(ctx, true, REPORT_TOO_BIG);
		decrement_hop_limit(ctx, ip);
	} else {
		struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		number = look_up4(ip->daddr);
		if (!number)
			return false;
		if (ip->ttl <= 1)
			return report_and_drop(ctx, false, REPORT_TIME_EXCEEDED);
		/* The egress link drops and counts a long packet without this flag. */
		if (ip->frag_off & bpf_htons(DONT_FRAGMENT) &&
		    is_too_long(ctx, &headers, bpf_ntohs(ip->tot_len)))
			return report_and_drop(ctx, false, REPORT_TOO_BIG);
		decrement_ttl(ip);
	}

	const struct next_hop *hop = bpf_map_lookup_elem(&hops, &number);

	if (!hop)
		return false;
	if (hop->writes & WRITES_DESTINATION)
		__builtin_memcpy(ethernet->h_dest, hop->destination, ETH_ALEN);
	if (hop->writes & WRITES_SOURCE)
		__builtin_memcpy(ethernet->h_source, hop->source, ETH_ALEN);
	return true;
}

HOOK_SECTION
int myelin_router(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);
	bool routed = route_packet(ctx);

	hop_leave(line, entered);
	return routed ? hop_exit(ctx) : hop_drop(ctx, line);
}

char LICENSE[] SEC("license") = "GPL";
