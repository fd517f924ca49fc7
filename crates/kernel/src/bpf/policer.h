/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The policer: a token bucket in packets, in bits, or both. The policer gives the same verdicts as
 * myelin_packet::traffic::TokenBucket, which defines the units. A packet or a bit is 10^9 units of
 * credit. A rate of one per second earns one unit per nanosecond. So the program rounds nothing.
 */
#ifndef MYELIN_POLICER_H
#define MYELIN_POLICER_H

#include <stdbool.h>

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* One bucket. All members are zero if the profile has no such bucket, so every packet conforms. */
struct bucket {
	__u64 rate;
	__u64 full;
	__u64 fill_ns;	   /* time in which an empty bucket becomes full */
	__u64 unit_credit; /* credit of one packet or bit */
};

/* Same layout as myelin_kernel::policer::PolicerEntry. The first cache line holds the fields that
 * every packet writes, the second the constants. */
struct policer {
	struct bpf_spin_lock lock;
	__u32 padding;
	__u64 last_ns;
	__u64 packets; /* credit */
	__u64 bits;
	__u64 shaper_words[4]; /* counters and limit of a shaper, by enum shaper_word */
	struct bucket packet_bucket;
	struct bucket bit_bucket;
};

_Static_assert(sizeof(struct policer) == 128, "two cache lines");

/* Number 0 means: no policer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct policer);
	__uint(max_entries, 1);
} policers SEC(".maps");

static __always_inline __u64 refilled_credit(const struct bucket *bucket, __u64 credit,
					     __u64 elapsed_ns)
{
	if (elapsed_ns >= bucket->fill_ns)
		return bucket->full;
	credit += elapsed_ns * bucket->rate;
	return credit < bucket->full ? credit : bucket->full;
}

/*
 * Returns whether `packets` packets with `bytes` bytes in total conform. If the packets conform,
 * takes the credit. With `single_cpu`, no other CPU runs this function at the same time.
 */
static __always_inline bool police(struct policer *policer, __u64 now_ns, __u64 packets,
				   __u64 bytes, bool single_cpu)
{
	__u64 packet_cost = packets * policer->packet_bucket.unit_credit;
	__u64 bit_cost = bytes * 8 * policer->bit_bucket.unit_credit;

	if (!single_cpu)
		bpf_spin_lock(&policer->lock);

	/* Another CPU with a later clock reading may have updated the policer first. */
	__u64 elapsed_ns = now_ns > policer->last_ns ? now_ns - policer->last_ns : 0;
	__u64 packet_credit =
		refilled_credit(&policer->packet_bucket, policer->packets, elapsed_ns);
	__u64 bit_credit = refilled_credit(&policer->bit_bucket, policer->bits, elapsed_ns);
	bool conforms = packet_credit >= packet_cost && bit_credit >= bit_cost;

	/* A dropped packet writes nothing, because the bucket earns the same credit later. */
	if (conforms) {
		policer->packets = packet_credit - packet_cost;
		policer->bits = bit_credit - bit_cost;
		policer->last_ns += elapsed_ns;
	}
	if (!single_cpu)
		bpf_spin_unlock(&policer->lock);
	return conforms;
}

#endif
