/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The policer: a token bucket in packets, in bits, or in both at once. Twin of
 * myelin_packet::traffic::TokenBucket, which tells what the figures mean: a packet or a bit is 10^9
 * of credit, and a rate of one a second earns one of credit a nanosecond, so that nothing is
 * rounded.
 */
#ifndef MYELIN_POLICER_H
#define MYELIN_POLICER_H

#include <stdbool.h>

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* One bucket; all zero where the profile has none, so that everything conforms. */
struct bucket {
	__u64 rate;
	__u64 full;
	__u64 fill_ns; /* after so long it is full, whatever was in it */
	__u64 each;    /* credit of one packet or bit */
};

/* Twin: myelin_kernel::policer::Entry. What every packet writes is on one line, what it only reads
 * on the other. */
struct policer {
	struct bpf_spin_lock lock;
	__u32 spare;
	__u64 last_ns;
	__u64 packets; /* credit */
	__u64 bits;
	__u64 more[4];
	struct bucket of_packets;
	struct bucket of_bits;
};

_Static_assert(sizeof(struct policer) == 128, "two cache lines");

/* Number 0 is no policer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct policer);
	__uint(max_entries, 1);
} policers SEC(".maps");

static __always_inline __u64 filled(const struct bucket *bucket, __u64 credit, __u64 elapsed_ns)
{
	if (elapsed_ns >= bucket->fill_ns)
		return bucket->full;
	credit += elapsed_ns * bucket->rate;
	return credit < bucket->full ? credit : bucket->full;
}

/*
 * Whether so many packets of together so many bytes conform; if so they are taken out of the
 * bucket. `alone`: no other CPU can be here at the same time.
 */
static __always_inline bool police(struct policer *policer, __u64 now_ns, __u64 packets,
				   __u64 bytes, bool alone)
{
	__u64 packet_cost = packets * policer->of_packets.each;
	__u64 bit_cost = bytes * 8 * policer->of_bits.each;

	if (!alone)
		bpf_spin_lock(&policer->lock);

	/* Another CPU, with a later reading of the clock, may have been first. */
	__u64 elapsed_ns = now_ns > policer->last_ns ? now_ns - policer->last_ns : 0;
	__u64 packet_credit = filled(&policer->of_packets, policer->packets, elapsed_ns);
	__u64 bit_credit = filled(&policer->of_bits, policer->bits, elapsed_ns);
	bool conforms = packet_credit >= packet_cost && bit_credit >= bit_cost;

	/* What is turned down writes nothing: the same is earned later. */
	if (conforms) {
		policer->packets = packet_credit - packet_cost;
		policer->bits = bit_credit - bit_cost;
		policer->last_ns += elapsed_ns;
	}
	if (!alone)
		bpf_spin_unlock(&policer->lock);
	return conforms;
}

#endif
