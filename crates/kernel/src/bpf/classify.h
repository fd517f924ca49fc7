/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999): one hash look-up a mask, most
 * specific mask first, until one hits. A bit array says of nearly every key that is not in the
 * table that it is not, for a few instructions instead of a look-up, so that neither the number of
 * masks nor the number of chains weighs much.
 */
#ifndef MYELIN_CLASSIFY_H
#define MYELIN_CLASSIFY_H

#include "parse.h"

#define MAX_MASKS 64
/*
 * In the mask field of the key of a packet without ports. A mask that names a port keeps it, so
 * that no key in the table matches: a test of the packet's flags in the loop would be one more
 * branch.
 */
#define NO_PORTS 0x80

/* Twin: myelin_kernel::classifier::MaskEntry. */
struct mask {
	__u64 keep[sizeof(union key) / sizeof(__u64)]; /* two words for IPv4, five for IPv6 */
	__u64 tag; /* the mask's number, where `fields.mask` lies in its word */
};

struct masks {
	__u32 count4;
	__u32 count6;
	struct mask v4[MAX_MASKS];
	struct mask v6[MAX_MASKS];
};

/* Readers use the bank that `active` tells; the writer changes the other one, then `active`. */
struct mask_banks {
	__u32 active;
	__u32 spare;
	struct masks banks[2];
};

/* One port's masks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct mask_banks);
	__uint(max_entries, 1);
} masks SEC(".maps");

/* From key to the number of a chain, for all ports. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct key4);
	__type(value, __u32);
	__uint(max_entries, 1);
} matches4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct key6);
	__type(value, __u32);
	__uint(max_entries, 1);
} matches6 SEC(".maps");

/* 2^20 bits: with 16 384 keys in the tables one absent key in 64 passes. */
#define PRESENCE_BITS (1U << 20)

struct presence {
	__u64 words[PRESENCE_BITS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct presence);
	__uint(max_entries, 1);
} presence SEC(".maps");

/* Where a chain starts; twin: myelin_kernel::chain::ChainEntry. Never changes while in use. */
struct chain {
	__u32 spi;
	__u32 line; /* the front door's counters, first of the chain's block */
	__u32 slot; /* of the first kernel function */
	__u16 generation;
	__u8 hook;	 /* enum hook */
	__u8 entry;	 /* enum entry */
	__u8 on_failure; /* enum on_failure */
	__u8 spare[15];
};

_Static_assert(sizeof(struct chain) == 32, "half a cache line");

enum entry {
	ENTRY_KERNEL = 1,
	ENTRY_USER = 2,
};

enum on_failure {
	ON_FAILURE_DROP = 0,
	ON_FAILURE_PASS = 1,
};

/* Number 0 is no chain. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct chain);
	__uint(max_entries, 1);
} chains SEC(".maps");

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* The bit that stands for a key. Twin: myelin_kernel::classifier::presence_bit. */
static __always_inline __u32 presence_bit(const union key *key, bool six)
{
	__u64 hash = mix(mix(0, key->words[0]), key->words[1]);

	if (six)
		hash = mix(mix(mix(hash, key->words[2]), key->words[3]), key->words[4]);
	return hash & (PRESENCE_BITS - 1);
}

static __always_inline void apply(const struct mask *mask, const union key *key, bool six,
				  union key *masked)
{
	masked->words[0] = key->words[0] & mask->keep[0];
	masked->words[1] = key->words[1] & mask->keep[1];
	if (six) {
		masked->words[2] = key->words[2] & mask->keep[2];
		masked->words[3] = key->words[3] & mask->keep[3];
		masked->words[4] = key->words[4] & mask->keep[4];
	}
	masked->words[six ? 4 : 1] |= mask->tag;
}

/* A search under way. */
struct search {
	const struct mask *masks;
	const struct presence *presence;
	union key *key;
	__u32 count;
	__u32 found;
};

/* Looks under one mask; 1 ends the search. */
static __always_inline long look(void *matches, __u32 i, struct search *search, bool six)
{
	if (i >= search->count || i >= MAX_MASKS)
		return 1;

	union key masked;

	apply(&search->masks[i], search->key, six, &masked);

	__u32 bit = presence_bit(&masked, six);

	if (!(search->presence->words[bit / 64] >> (bit % 64) & 1))
		return 0;

	const __u32 *number = bpf_map_lookup_elem(matches, &masked);

	if (!number)
		return 0;
	search->found = *number;
	return 1;
}

static long look4(__u32 i, struct search *search)
{
	return look(&matches4, i, search, false);
}

static long look6(__u32 i, struct search *search)
{
	return look(&matches6, i, search, true);
}

/*
 * The loop over the masks is bpf_loop, whose body the verifier looks at once: as a plain loop it
 * makes loading a door several times slower. Apart, so that each call has one callback and is
 * inlined.
 */
static __noinline void search4(struct search *search)
{
	bpf_loop(MAX_MASKS, look4, search, 0);
}

static __noinline void search6(struct search *search)
{
	bpf_loop(MAX_MASKS, look6, search, 0);
}

/* The chain that takes a packet which came in by `port`. */
static __always_inline const struct chain *classify(const struct headers *headers, union key *key,
						    __u16 port)
{
	__u8 without_ports = headers->flags & FLAG_PORTS ? 0 : NO_PORTS;
	__u32 zero = 0;
	const struct mask_banks *both = bpf_map_lookup_elem(&masks, &zero);
	struct search search = {
		.presence = bpf_map_lookup_elem(&presence, &zero),
		.key = key,
	};

	if (!both || !search.presence)
		return NULL;

	const struct masks *active = &both->banks[both->active & 1];

	if (headers->flags & FLAG_IPV6) {
		key->v6.fields.port = port;
		key->v6.fields.mask = without_ports;
		search.masks = active->v6;
		search.count = active->count6;
		search6(&search);
	} else {
		key->v4.fields.port = port;
		key->v4.fields.mask = without_ports;
		search.masks = active->v4;
		search.count = active->count4;
		search4(&search);
	}
	if (!search.found)
		return NULL;
	return bpf_map_lookup_elem(&chains, &search.found);
}

#endif
