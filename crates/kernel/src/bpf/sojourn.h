/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Histogram of the time from the front door to the egress, one histogram for each section of a
 * chain. Layout and buckets follow myelin_packet::sojourn: 32 buckets per octave; values from 2^36
 * ns are in the last bucket.
 */
#ifndef MYELIN_SOJOURN_H
#define MYELIN_SOJOURN_H

#include "hook.h"
#include "instance.h"

#define SOJOURN_SUB_BITS 5
#define SOJOURN_BUCKETS	 1024
#define SOJOURN_LIMIT	 (1ULL << 36)

struct myelin_sojourn {
	__u64 sum_ns;
	__u64 min_ns; /* user space initialises this member to the largest value */
	__u64 max_ns;
	__u64 padding[5];
	__u64 buckets[SOJOURN_BUCKETS];
};

/* One part per CPU. The loader sets the size, as for `counters`. */
struct myelin_sojourn sojourn[1] SEC(".data.sojourn");

static __always_inline __u32 sojourn_bucket(__u64 ns)
{
	if (ns >= SOJOURN_LIMIT)
		return SOJOURN_BUCKETS - 1;

	/* Compute the bit length of `high` by halving, because the instruction set has no "count
	 * leading zeros".
	 */
	__u32 high = ns >> SOJOURN_SUB_BITS, octave = 0;

	if (high >> 16) {
		octave = 16;
		high >>= 16;
	}
	if (high >> 8) {
		octave += 8;
		high >>= 8;
	}
	if (high >> 4) {
		octave += 4;
		high >>= 4;
	}
	if (high >> 2) {
		octave += 2;
		high >>= 2;
	}
	/* `high` is 0 to 3 here, and 0 only below 32 ns. The bit length of 0 to 3 is 0, 1, 2, 2. */
	octave += high - (high == 3);
	/* Octave 0 is linear. Octaves 0 and 1 have buckets of 1 ns. */
	if (octave == 0)
		return ns;
	return (octave - 1) * (1 << SOJOURN_SUB_BITS) + (__u32)(ns >> (octave - 1));
}

/* Records the time of a packet with `segments` segments. */
static __always_inline void sojourn_record(__u64 ns, __u32 segments)
{
	__u32 cpu = bpf_get_smp_processor_id() & COUNTING(last_cpu);
	struct myelin_sojourn *part = sojourn;

	/* The compiler must not assume an array of one element. */
	asm("" : "+r"(part));
	part += cpu;
	part->sum_ns += ns * segments;
	if (ns < part->min_ns)
		part->min_ns = ns;
	if (ns > part->max_ns)
		part->max_ns = ns;
	part->buckets[sojourn_bucket(ns) & (SOJOURN_BUCKETS - 1)] += segments;
}

#endif
