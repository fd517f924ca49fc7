// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Drops packets that the rules deny: aggregated bit vectors (Baboescu, Varghese, SIGCOMM 2001) over
 * the tables of myelin_packet::rules. The loader copies the tables unchanged into the single
 * element of an array. The read-only data holds each table's offset and length, so the verifier can
 * check every access.
 */
#include "icmp_quote.h"
#include "next.h"

/* Same layout as myelin_packet::rules::ClassVector. */
#define WORDS 16

struct class_vector {
	__u64 summary;
	__u64 words[WORDS];
};

_Static_assert(sizeof(struct class_vector) == 136, "the layout is shared with user space");

/*
 * Byte offsets in the element, and numbers of entries. Same layout as
 * myelin_kernel::firewall::TableOffsets.
 */
struct table {
	__u32 entries; /* IPv4: u32 by the first 16 bits; IPv6: u32 by interval; else u16 by value
			*/
	__u32 starts;  /* IPv6: first address of each interval, two u64, high half first */
	__u32 first_step;  /* IPv6: half the number of intervals, which the loader pads to a
			      power of two */
	__u32 blocks;	   /* IPv4: u32, 256 per block */
	__u32 block_count; /* entries of all blocks */
	__u32 vectors;
	__u32 vector_count;
	__u32 padding;
};

#define IS_BLOCK 0x80000000u

/* Same layout as myelin_kernel::firewall::FirewallInstance. */
const volatile struct firewall {
	struct hop hop;
	struct table source_v4;
	struct table destination_v4;
	struct table source_v6;
	struct table destination_v6;
	struct table protocol;
	struct table source_port;
	struct table destination_port;
	__u32 allow; /* WORDS u64: bit r is set if rule r allows */
	__u32 default_allow;
	__u32 drops_fragments;
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

/* The loader sets the size of the element. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} tables SEC(".maps");

typedef const volatile struct table table;

static __always_inline const struct class_vector *find_vector(const void *base, table *table,
							      __u32 class)
{
	if (class >= table->vector_count)
		return NULL;
	return base + table->vectors + class * sizeof(struct class_vector);
}

static __always_inline const struct class_vector *look_up_address4(const void *base, table *table,
								   __be32 address)
{
	__u32 host = bpf_ntohl(address);
	__u32 entry = *(const __u32 *)(base + table->entries + (host >> 16) * sizeof(__u32));

	if (entry & IS_BLOCK) {
		__u64 at = (__u64)(entry & ~IS_BLOCK) * 256 + (host >> 8 & 0xff);

		if (at >= table->block_count)
			return NULL;
		entry = *(const __u32 *)(base + table->blocks + at * sizeof(__u32));
	}
	if (entry & IS_BLOCK) {
		__u64 at = (__u64)(entry & ~IS_BLOCK) * 256 + (host & 0xff);

		if (at >= table->block_count)
			return NULL;
		entry = *(const __u32 *)(base + table->blocks + at * sizeof(__u32));
	}
	return find_vector(base, table, entry);
}

/* Returns 1 if a - b - borrow is below zero, else 0: the borrow of a subtractor, without a branch.
 */
static __always_inline __u64 borrows(__u64 a, __u64 b, __u64 borrow)
{
	return ((~a & b) | ((~a | b) & (a - b - borrow))) >> 63;
}

/*
 * Binary search without branches. With branches the verifier would follow each path separately, and
 * the CPU could not predict the branches.
 */
static __always_inline const struct class_vector *look_up_address6(const void *base, table *table,
								   const struct in6_addr *address)
{
	const __be32 *words = address->in6_u.u6_addr32;
	__u64 high = (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
	__u64 low = (__u64)bpf_ntohl(words[2]) << 32 | bpf_ntohl(words[3]);
	__u64 at = 0;

#pragma clang loop unroll(disable)
	for (__u32 step = table->first_step; step; step /= 2) {
		const __u64 *start = base + table->starts + (at + step) * 2 * sizeof(__u64);
		__u64 below = borrows(high, start[0], borrows(low, start[1], 0));

		/* Prevents the compiler from making a branch. */
		barrier_var(below);
		at += step & (below - 1);
	}
	return find_vector(base, table,
			   *(const __u32 *)(base + table->entries + at * sizeof(__u32)));
}

static __always_inline const struct class_vector *look_up_value(const void *base, table *table,
								__u16 value)
{
	return find_vector(base, table,
			   *(const __u16 *)(base + table->entries + value * sizeof(__u16)));
}

/* A packet without ports is in class 0. */
static __always_inline const struct class_vector *look_up_port(const void *base, table *table,
							       const __be16 *port)
{
	return port ? look_up_value(base, table, bpf_ntohs(*port)) : find_vector(base, table, 0);
}

/* Returns the number of the lowest set bit of a non-zero 16-bit set. Counts the bits below it. */
static __always_inline __u32 lowest_bit(__u32 set)
{
	__u32 below = (set & -set) - 1;

	below -= below >> 1 & 0x5555;
	below = (below & 0x3333) + (below >> 2 & 0x3333);
	below = (below + (below >> 4)) & 0x0f0f;
	return (below + (below >> 8)) & (WORDS - 1);
}

struct vectors {
	const struct class_vector *source;
	const struct class_vector *destination;
	const struct class_vector *protocol;
	const struct class_vector *source_port;
	const struct class_vector *destination_port;
};

enum match {
	RULE_DENIES = 0,
	RULE_ALLOWS = 1,
	NO_RULE = 2,
};

/* Returns the verdict of the first matching rule. */
static __always_inline enum match first_match(const void *base, const struct vectors *vectors)
{
	const __u64 *allow = base + INSTANCE.allow;
	__u32 candidates = vectors->source->summary & vectors->destination->summary &
			   vectors->protocol->summary & vectors->source_port->summary &
			   vectors->destination_port->summary;

#pragma clang loop unroll(disable)
	for (int i = 0; i < WORDS && candidates; i++) {
		__u32 word = lowest_bit(candidates);
		__u64 common = vectors->source->words[word] & vectors->destination->words[word] &
			       vectors->protocol->words[word] & vectors->source_port->words[word] &
			       vectors->destination_port->words[word];

		if (common)
			return common & -common & allow[word] ? RULE_ALLOWS : RULE_DENIES;
		candidates &= candidates - 1;
	}
	return NO_RULE;
}

/* Looks up protocol and ports. `source_port` and `destination_port` are NULL without ports. */
static __always_inline bool look_up_transport(const void *base, __u8 protocol,
					      const __be16 *source_port,
					      const __be16 *destination_port,
					      struct vectors *vectors)
{
	vectors->protocol = look_up_value(base, &INSTANCE.protocol, protocol);
	if (!vectors->protocol)
		return false;
	vectors->source_port = look_up_port(base, &INSTANCE.source_port, source_port);
	if (!vectors->source_port)
		return false;
	vectors->destination_port =
		look_up_port(base, &INSTANCE.destination_port, destination_port);
	return vectors->destination_port;
}

/*
 * Returns whether a packet is an ICMP error, and a rule allows the flow of the quoted packet in the
 * direction of the error (RFC 4890, section 4.3.1). This is a global function, because the verifier
 * checks a global function only once.
 */
__noinline int is_error_allowed(hook_ctx *ctx)
{
	struct icmp_quote quote = {};
	struct vectors vectors;
	__u32 zero = 0;
	const void *base = bpf_map_lookup_elem(&tables, &zero);

	if (!base || !find_icmp_error(ctx, &quote) || !find_quoted_packet(ctx, &quote))
		return false;

	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const void *l3 = data + (quote.l3 & MAX_OFFSET);
	const __be16 *ports = data + (quote.l4 & MAX_OFFSET);

	/* The quoted packet went in the other direction. */
	if (quote.is_ipv6) {
		const struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		vectors.source = look_up_address6(base, &INSTANCE.source_v6, &ip->daddr);
		vectors.destination = look_up_address6(base, &INSTANCE.destination_v6, &ip->saddr);
	} else {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		vectors.source = look_up_address4(base, &INSTANCE.source_v4, ip->daddr);
		vectors.destination = look_up_address4(base, &INSTANCE.destination_v4, ip->saddr);
	}
	if (!vectors.source || !vectors.destination || (const void *)(ports + 2) > data_end)
		return false;

	bool has_ports = quote_has_ports(&quote);

	return look_up_transport(base, quote.protocol, has_ports ? ports + 1 : NULL,
				 has_ports ? ports : NULL, &vectors) &&
	       first_match(base, &vectors) == RULE_ALLOWS;
}

static __always_inline bool is_allowed(hook_ctx *ctx)
{
	__u32 zero = 0;
	const void *base = bpf_map_lookup_elem(&tables, &zero);
	const void *data_end = (void *)(long)ctx->data_end;
	struct headers headers;
	struct vectors vectors;
	__u8 protocol;

	if (!base || !hook_headers(ctx, &headers))
		return false;
	if (INSTANCE.drops_fragments && headers.flags & FLAG_FRAGMENT)
		return false;
	if (!read_protocol(ctx, &headers, &protocol))
		return false;

	const void *l3 = (void *)(long)ctx->data + (headers.l3 & MAX_OFFSET);

	if (headers.flags & FLAG_IPV6) {
		const struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		vectors.source = look_up_address6(base, &INSTANCE.source_v6, &ip->saddr);
		vectors.destination = look_up_address6(base, &INSTANCE.destination_v6, &ip->daddr);
	} else {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		vectors.source = look_up_address4(base, &INSTANCE.source_v4, ip->saddr);
		vectors.destination = look_up_address4(base, &INSTANCE.destination_v4, ip->daddr);
	}

	const __be16 *ports = NULL;

	if (!vectors.source || !vectors.destination)
		return false;
	if (headers.flags & FLAG_PORTS) {
		ports = (void *)(long)ctx->data + (headers.l4 & MAX_OFFSET);
		if ((const void *)(ports + 2) > data_end)
			return false;
	}
	if (!look_up_transport(base, protocol, ports, ports ? ports + 1 : NULL, &vectors))
		return false;

	enum match match = first_match(base, &vectors);

	if (match == NO_RULE)
		return INSTANCE.default_allow || is_error_allowed(ctx);
	return match == RULE_ALLOWS;
}

HOOK_SECTION
int myelin_firewall(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);
	bool allowed = is_allowed(ctx);

	hop_leave(line, entered);
	if (!allowed)
		return hop_drop(ctx, line);

	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
