/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The shaper of an interface that delays each packet until the packet's departure time (EDT). The
 * shaper uses the bucket of the policer. A packet takes credit in advance, for its departure time.
 * The times are the same as those of TokenBucket::eligible_ns in myelin_packet::traffic.
 */
#ifndef MYELIN_DEPARTURE_H
#define MYELIN_DEPARTURE_H

#include "policer.h"

/* Indices into `shaper_words` of `struct policer`. */
enum shaper_word {
	SHAPER_DELAYED,	  /* packets that wait */
	SHAPER_LATE,	  /* packets dropped because their delay would exceed the limit */
	SHAPER_OVERSIZED, /* packets dropped because they are larger than the burst */
	SHAPER_LIMIT_NS,  /* longest delay of a packet */
};

/*
 * Returns the time from the latest departure until the credit suffices for `cost`. `cost` is at
 * most `full`.
 */
static __always_inline __u64 wait_ns(const struct bucket *bucket, __u64 credit, __u64 cost)
{
	if (cost <= credit)
		return 0;
	/* In a bucket without a rate the cost is 0, so this line does not divide by zero. */
	return (cost - credit - 1) / bucket->rate + 1;
}

/* Returns the departure time of a packet that arrives now, ns. Returns 0 if the packet never
 * conforms, or if the packet's delay exceeds the limit. */
static __always_inline __u64 departure_ns(struct policer *shaper, __u64 now_ns, __u64 packets,
					  __u64 bytes)
{
	__u64 packet_cost = packets * shaper->packet_bucket.unit_credit;
	__u64 bit_cost = bytes * 8 * shaper->bit_bucket.unit_credit;
	__u64 departs_ns = 0;

	bpf_spin_lock(&shaper->lock);
	if (packet_cost > shaper->packet_bucket.full || bit_cost > shaper->bit_bucket.full) {
		shaper->shaper_words[SHAPER_OVERSIZED] += packets;
		goto out;
	}

	__u64 for_packets = wait_ns(&shaper->packet_bucket, shaper->packets, packet_cost);
	__u64 for_bits = wait_ns(&shaper->bit_bucket, shaper->bits, bit_cost);
	__u64 elapsed_ns = for_packets > for_bits ? for_packets : for_bits;

	departs_ns = shaper->last_ns + elapsed_ns;
	if (departs_ns < now_ns) {
		departs_ns = now_ns;
		elapsed_ns = now_ns - shaper->last_ns;
	} else if (departs_ns - now_ns > shaper->shaper_words[SHAPER_LIMIT_NS]) {
		shaper->shaper_words[SHAPER_LATE] += packets;
		departs_ns = 0;
		goto out;
	} else if (departs_ns > now_ns) {
		shaper->shaper_words[SHAPER_DELAYED] += packets;
	}
	shaper->packets =
		refilled_credit(&shaper->packet_bucket, shaper->packets, elapsed_ns) - packet_cost;
	shaper->bits = refilled_credit(&shaper->bit_bucket, shaper->bits, elapsed_ns) - bit_cost;
	shaper->last_ns = departs_ns;
out:
	bpf_spin_unlock(&shaper->lock);
	return departs_ns;
}

#endif
