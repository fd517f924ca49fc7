/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Maglev hashing of flows, as in myelin_packet::maglev. */
#ifndef MYELIN_MAGLEV_H
#define MYELIN_MAGLEV_H

#include "flow_key.h"

/* Same value as myelin_packet::maglev::TABLE_SIZE. */
#define TABLE_SIZE 65537
#define NO_BACKEND 0xffff

/* Same entries as myelin_packet::maglev::MaglevTable, padded to a multiple of eight bytes. */
struct table {
	__u16 entries[(TABLE_SIZE + 3) & ~3];
};

/* Returns the same hash as `mix` of myelin_packet::maglev. */
static __always_inline __u32 flow_hash(const struct flow_key *key)
{
	const __u64 *words = (const __u64 *)key;
	__u64 hash = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*key) / sizeof(*words); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	return hash * 0xbf58476d1ce4e5b9ULL >> 32;
}

/* Returns the number of a flow's backend, or NO_BACKEND. */
static __always_inline __u32 find_backend_number(const struct table *table,
						 const struct flow_key *key)
{
	/* Uses the hash as a fraction of the table. */
	__u64 at = (__u64)flow_hash(key) * TABLE_SIZE >> 32;

	return table->entries[at];
}

#endif
