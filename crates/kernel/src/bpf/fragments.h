/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Classifies fragments. A later fragment has no ports, so the door remembers the ports of the first
 * fragment and classifies the later fragments with them. A fragment without known ports is dropped
 * if a match with ports could take its datagram. Same decisions as myelin_packet::fragments.
 */
#ifndef MYELIN_FRAGMENTS_H
#define MYELIN_FRAGMENTS_H

#include "classify.h"

#define FRAGMENT_LIFETIME_NS 30000000000ULL
#define IPV4_OFFSET	     0x1fff
#define IPV6_OFFSET	     0xfff8

/* Result of classify_fragment: drop and count the fragment. No chain has this number. */
#define FRAGMENT_DROPPED 0xffffffff

/* Same masks as in `masks`, but without ports. Empty while no match with ports needs them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct mask_banks);
	__uint(max_entries, 1);
} fragment_masks SEC(".maps");

/*
 * A masked key of either family, without ports. The value is 1 if a match with ports could take the
 * fragment, 0 if the most specific match has no ports. The writer is
 * myelin_kernel::classifier::fragments.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, union key);
	__type(value, __u32);
	__uint(max_entries, 1);
} fragment_rules SEC(".maps");

/* The datagram of a fragment. */
struct datagram {
	__u8 source[16]; /* IPv4 in the first four bytes */
	__u8 destination[16];
	__be32 identification;
	__u16 port; /* number of the ingress port */
	__u8 protocol;
	__u8 is_ipv6;
};

/* The ports of a first fragment. */
struct first_fragment {
	__u64 seen_ns;
	__be16 source_port;
	__be16 destination_port;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct datagram);
	__type(value, struct first_fragment);
	__uint(max_entries, 1);
} datagrams SEC(".maps");

static __always_inline bool hook_read(hook_ctx *ctx, __u32 offset, void *to, __u32 length)
{
#if defined(MYELIN_HOOK_XDP)
	return bpf_xdp_load_bytes(ctx, offset, to, length) == 0;
#else
	return bpf_skb_load_bytes(ctx, offset, to, length) == 0;
#endif
}

/* Reads the datagram's identity. Returns the fragment's offset; negative if that fails. */
static __always_inline int read_datagram(hook_ctx *ctx, const struct headers *headers,
					 const union key *key, __u16 port,
					 struct datagram *datagram)
{
	datagram->port = port;
	datagram->protocol = headers->protocol;
	if (headers->flags & FLAG_IPV6) {
		/* The parser stops behind the fragment header. */
		struct {
			__be16 next;
			__be16 offset;
			__be32 identification;
		} fragment;

		if (!hook_read(ctx, headers->l4 - sizeof(fragment), &fragment, sizeof(fragment)))
			return -1;
		__builtin_memcpy(datagram->source, key->v6.source, 16);
		__builtin_memcpy(datagram->destination, key->v6.destination, 16);
		datagram->identification = fragment.identification;
		datagram->is_ipv6 = 1;
		return bpf_ntohs(fragment.offset) & IPV6_OFFSET;
	}

	struct {
		__be16 identification;
		__be16 offset;
	} fragment;

	if (!hook_read(ctx, headers->l3 + offsetof(struct iphdr, id), &fragment, sizeof(fragment)))
		return -1;
	__builtin_memcpy(datagram->source, &key->v4.source, 4);
	__builtin_memcpy(datagram->destination, &key->v4.destination, 4);
	datagram->identification = fragment.identification;
	return bpf_ntohs(fragment.offset) & IPV4_OFFSET;
}

/* Finds the ports of the fragment's datagram. Remembers the ports of a first fragment. */
static __noinline bool find_ports(hook_ctx *ctx, const struct headers *headers,
				  const union key *key, struct first_fragment *first, __u16 port)
{
	struct datagram datagram = {};
	int offset = read_datagram(ctx, headers, key, port, &datagram);
	__u64 now_ns = bpf_ktime_get_ns();

	if (offset < 0)
		return false;
	if (offset) {
		const struct first_fragment *seen = bpf_map_lookup_elem(&datagrams, &datagram);

		if (!seen || now_ns - seen->seen_ns > FRAGMENT_LIFETIME_NS)
			return false;
		*first = *seen;
		return true;
	}

	__u32 needed =
		headers->protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);

	/* Both headers begin with the ports. */
	if (headers->l4 + needed > headers->end ||
	    !hook_read(ctx, headers->l4, &first->source_port, 2 * sizeof(__be16)))
		return false;
	first->seen_ns = now_ns;
	/* If the map is full, the later fragments are dropped. */
	bpf_map_update_elem(&datagrams, &datagram, first, BPF_ANY);
	return true;
}

/* State of a search over the masks without ports. */
struct guard_search {
	const struct masks *masks;
	const union key *key;
	__u32 guarded;
	__u32 is_ipv6;
};

/* Searches under mask `i`. Returns 1 to end the search. */
static long search_guard(__u32 i, struct guard_search *search)
{
	const struct mask *mask;
	union key masked = {};

	if (i >= MAX_MASKS)
		return 1;
	if (search->is_ipv6) {
		if (i >= search->masks->count6)
			return 1;
		mask = &search->masks->v6[i];
		for (int word = 0; word < 5; word++)
			masked.words[word] = search->key->words[word] & mask->keep[word];
		masked.words[4] |= mask->tag;
	} else {
		if (i >= search->masks->count4)
			return 1;
		mask = &search->masks->v4[i];
		masked.words[0] = search->key->words[0] & mask->keep[0];
		masked.words[1] = (search->key->words[1] & mask->keep[1]) | mask->tag;
	}

	const __u32 *guarded = bpf_map_lookup_elem(&fragment_rules, &masked);

	if (!guarded)
		return 0;
	search->guarded = *guarded;
	return 1;
}

/* Returns whether a match with ports could take a datagram whose ports are unknown. */
static __noinline bool is_guarded(const struct masks *guards, const union key *key, __u32 is_ipv6)
{
	struct guard_search search = {.masks = guards, .key = key, .is_ipv6 = is_ipv6};

	bpf_loop(MAX_MASKS, search_guard, &search, 0);
	return search.guarded;
}

/* Searches all masks of the packet's family. Returns the number with its FRAGMENTS_ bits. Needs
 * little stack: this call and those above and below it share 512 bytes, and Linux 6.1 rounds each
 * up to 32 bytes. */
static __noinline __u32 search_all_masks(const struct masks *active, union key *key, __u32 is_ipv6)
{
	struct search search = {.masks = active, .key = key};

	if (is_ipv6)
		search_masks6(&search);
	else
		search_masks4(&search);
	return search.found;
}

static __always_inline struct fields *fields_of(union key *key, __u32 is_ipv6)
{
	return is_ipv6 ? &key->v6.fields : &key->v4.fields;
}

/* Classifies a fragment without its ports. */
static __always_inline __u32 search_without_ports(const struct masks *active, union key *key,
						  __u32 is_ipv6)
{
	struct fields *fields = fields_of(key, is_ipv6);

	fields->source_port = 0;
	fields->destination_port = 0;
	fields->mask = NO_PORTS;

	__u32 found = search_all_masks(active, key, is_ipv6);

	return found & FRAGMENTS_DROP ? FRAGMENT_DROPPED : found & CHAIN_NUMBER;
}

/* Returns the number of the fragment's chain; 0: none; FRAGMENT_DROPPED: drop the fragment. */
static __noinline __u32 classify_fragment(hook_ctx *ctx, const struct masks *active,
					  const struct headers *headers, union key *key, __u32 port)
{
	__u32 zero = 0, is_ipv6 = headers->flags & FLAG_IPV6;
	const struct mask_banks *banks = bpf_map_lookup_elem(&fragment_masks, &zero);
	struct fields *fields = fields_of(key, is_ipv6);
	struct first_fragment first = {};

	fields->port = port;
	if (!banks)
		return 0;

	const struct masks *guards = &banks->banks[banks->active & 1];

	if (!(is_ipv6 ? guards->count6 : guards->count4))
		return search_without_ports(active, key, is_ipv6);
	if (headers->protocol != IPPROTO_UDP && headers->protocol != IPPROTO_TCP) {
		/* Another extension header hides the protocol. */
		if (is_ipv6 && is_extension(headers->protocol))
			return FRAGMENT_DROPPED;
		return search_without_ports(active, key, is_ipv6);
	}
	if (!find_ports(ctx, headers, key, &first, port)) {
		fields->mask = 0;
		if (is_guarded(guards, key, is_ipv6))
			return FRAGMENT_DROPPED;
		return search_without_ports(active, key, is_ipv6);
	}
	fields->source_port = first.source_port;
	fields->destination_port = first.destination_port;
	fields->mask = 0;

	__u32 found = search_all_masks(active, key, is_ipv6);

	if (found & FRAGMENTS_DROP)
		return FRAGMENT_DROPPED;
	if (found & FRAGMENTS_PASS)
		return search_without_ports(active, key, is_ipv6);
	return found;
}

#endif
