/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The classifier: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999). The classifier
 * looks up the packet once for each mask, the most specific mask first, until a look-up finds a
 * chain. The table is an array of buckets of one or two cache lines each. A look-up searches one
 * bucket inline, without a call, so the numbers of masks and chains cost little. A hash table holds
 * the keys that do not fit into their bucket; `overflow` in the bucket counts these keys.
 */
#ifndef MYELIN_CLASSIFY_H
#define MYELIN_CLASSIFY_H

#include "parse.h"

#define MAX_MASKS 64
/*
 * Bit of the mask field in the key of a packet without ports. A mask that names a port keeps the
 * bit, so such a packet matches no key. This saves a branch on the packet's flags in the loop.
 */
#define NO_PORTS 0x80

/* A number in the tables: the chain's number, and the match's rule for fragments. Same bits as in
 * myelin_kernel::classifier::keys. */
#define CHAIN_NUMBER   0x3fffffff
#define FRAGMENTS_DROP (1U << 31)
#define FRAGMENTS_PASS (1U << 30)

/* Same layout as myelin_kernel::classifier::keys::MaskEntry. */
struct mask {
	__u64 keep[sizeof(union key) / sizeof(__u64)]; /* two words for IPv4, five for IPv6 */
	__u64 tag; /* the mask's number, at the position of `fields.mask` in the last word */
};

struct masks {
	__u32 count4;
	__u32 count6;
	struct mask v4[MAX_MASKS];
	struct mask v6[MAX_MASKS];
};

/* Readers use the bank `active`. The writer changes the other bank, then `active`. */
struct mask_banks {
	__u32 active;
	__u32 padding;
	struct masks banks[2];
};

/* The masks of one port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct mask_banks);
	__uint(max_entries, 1);
} masks SEC(".maps");

/*
 * Maps a key to the number of a chain, for all ports. User space writes the key of an entry before
 * the number, and writes the number 0 to free the entry. User space reuses the entry after a grace
 * period, when no program still compares the old key. The writer is
 * myelin_kernel::classifier::buckets.
 */
#define BUCKETS 16384

struct bucket4 {
	__u64 keys[3][2];
	__u32 numbers[3];
	__u32 overflow; /* keys of this bucket that are in `matches4` */
};

struct bucket6 {
	__u64 keys[2][5];
	__u32 numbers[2];
	__u32 overflow; /* keys of this bucket that are in `matches6` */
	__u32 padding[9];
};

_Static_assert(sizeof(struct bucket4) == 64 && sizeof(struct bucket6) == 128, "cache lines");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bucket4);
	__uint(max_entries, BUCKETS);
} buckets4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bucket6);
	__uint(max_entries, BUCKETS);
} buckets6 SEC(".maps");

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

/*
 * Start of a chain. User space never changes an entry in use. Same layout as
 * myelin_kernel::chain::ChainEntry.
 */
struct chain {
	__u32 spi;
	__u32 line; /* the front door's counter line, the first line of the chain */
	__u32 slot; /* slot of the first kernel function; ENTRY_LINK: index of the link's near end
		     */
	__u16 generation;
	__u8 hook;	 /* enum hook */
	__u8 entry;	 /* enum entry */
	__u8 on_failure; /* enum on_failure */
	__u8 padding[3];
	__u32 policer; /* 0: none */
	__u8 end_padding[8];
};

_Static_assert(sizeof(struct chain) == 32, "half a cache line");

enum entry {
	ENTRY_KERNEL = 1,
	ENTRY_USER = 2,
	ENTRY_LINK = 3, /* over the port's entry link to the front door behind it; tc only */
};

enum on_failure {
	ON_FAILURE_DROP = 0,
	ON_FAILURE_PASS = 1,
};

/* Number 0 means: no chain. */
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

/* Returns the number of the chain that matches under a mask; 0: none. */
static __always_inline __u32 look_up_mask4(const struct mask *mask, const union key *key)
{
	const __u64 masked[2] = {
		key->words[0] & mask->keep[0],
		(key->words[1] & mask->keep[1]) | mask->tag,
	};
	__u32 at = mix(mix(0, masked[0]), masked[1]) & (BUCKETS - 1);
	const struct bucket4 *bucket = bpf_map_lookup_elem(&buckets4, &at);

	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < 3; i++)
		if (bucket->keys[i][0] == masked[0] && bucket->keys[i][1] == masked[1])
			return bucket->numbers[i];
	if (!bucket->overflow)
		return 0;

	const __u32 *number = bpf_map_lookup_elem(&matches4, masked);

	return number ? *number : 0;
}

static __always_inline __u32 look_up_mask6(const struct mask *mask, const union key *key)
{
	const __u64 masked[5] = {
		key->words[0] & mask->keep[0],
		key->words[1] & mask->keep[1],
		key->words[2] & mask->keep[2],
		key->words[3] & mask->keep[3],
		(key->words[4] & mask->keep[4]) | mask->tag,
	};
	__u64 hash = mix(mix(mix(0, masked[0]), masked[1]), masked[2]);
	__u32 at = mix(mix(hash, masked[3]), masked[4]) & (BUCKETS - 1);
	const struct bucket6 *bucket = bpf_map_lookup_elem(&buckets6, &at);

	if (!bucket)
		return 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const __u64 *held = bucket->keys[i];

		if (held[0] == masked[0] && held[1] == masked[1] && held[2] == masked[2] &&
		    held[3] == masked[3] && held[4] == masked[4])
			return bucket->numbers[i];
	}
	if (!bucket->overflow)
		return 0;

	const __u32 *number = bpf_map_lookup_elem(&matches6, masked);

	return number ? *number : 0;
}

/* State of a search over the masks. */
struct search {
	const struct masks *masks;
	const union key *key;
	__u32 found;
	__u32 first; /* the mask at which bpf_loop begins */
};

/* Searches under mask `first` + `i`. Returns 1 to end the search. */
static long search_next_mask4(__u32 i, struct search *search)
{
	i += search->first;
	if (i >= search->masks->count4 || i >= MAX_MASKS)
		return 1;
	search->found = look_up_mask4(&search->masks->v4[i], search->key);
	return search->found != 0;
}

static long search_next_mask6(__u32 i, struct search *search)
{
	i += search->first;
	if (i >= search->masks->count6 || i >= MAX_MASKS)
		return 1;
	search->found = look_up_mask6(&search->masks->v6[i], search->key);
	return search->found != 0;
}

/*
 * Searches the masks with bpf_loop, because the verifier checks the callback only once. A plain
 * loop makes the load of a front door several times slower. Each call of bpf_loop is in a separate
 * function, so the call has one possible callback and the kernel inlines the call.
 */
static __noinline void search_masks4(struct search *search)
{
	bpf_loop(MAX_MASKS, search_next_mask4, search, 0);
}

static __noinline void search_masks6(struct search *search)
{
	bpf_loop(MAX_MASKS, search_next_mask6, search, 0);
}

static __always_inline const struct masks *active_masks(void)
{
	__u32 zero = 0;
	const struct mask_banks *banks = bpf_map_lookup_elem(&masks, &zero);

	return banks ? &banks->banks[banks->active & 1] : NULL;
}

/* Returns the chain of a packet that arrived at `port`. */
static __always_inline const struct chain *
classify(const struct masks *active, const struct headers *headers, union key *key, __u16 port)
{
	__u8 without_ports = headers->flags & FLAG_PORTS ? 0 : NO_PORTS;
	struct search search = {.masks = active, .key = key, .first = 1};

	if (headers->flags & FLAG_IPV6) {
		key->v6.fields.port = port;
		key->v6.fields.mask = without_ports;
		if (active->count6) {
			search.found = look_up_mask6(&active->v6[0], key);
			if (!search.found && active->count6 > 1)
				search_masks6(&search);
		}
	} else {
		key->v4.fields.port = port;
		key->v4.fields.mask = without_ports;
		if (active->count4) {
			search.found = look_up_mask4(&active->v4[0], key);
			if (!search.found && active->count4 > 1)
				search_masks4(&search);
		}
	}
	search.found &= CHAIN_NUMBER;
	if (!search.found)
		return NULL;
	return bpf_map_lookup_elem(&chains, &search.found);
}

#endif
