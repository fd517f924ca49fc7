// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The conformance monitor: a leaky bucket in packets and one in bits. Every packet fills them; the
 * rate drains them. The monitor passes every packet unchanged. It shares no code with the policer,
 * which it checks. Twin of myelin_packet::fixtures::Meter: a packet or a bit is 10^9 units of
 * level; a rate of one per second drains one unit per nanosecond. tc only, both directions.
 */
#include "instance.h"
#include "parse.h"

#define KEY_WORDS  (sizeof(union key) / sizeof(__u64))
#define VIOLATIONS 32  /* violations that are kept; a power of two */
#define HEADERS	   512 /* bytes of a frame that may hold its headers */
#define VLAN_TAG   4
/* Bit of the mask field in the key of a packet without ports. A filter by ports keeps it. */
#define NO_PORTS 0x80

enum {
	FAMILY_V4 = 0,
	FAMILY_V6 = 1,
};

/* Twin: myelin_kernel::conform::LeakyBucket. All zero if the profile has no such bucket. */
struct limit {
	__u64 rate;
	__u64 full;	/* highest conforming level */
	__u64 wide;	/* highest conforming level with the tolerance */
	__u64 drain_ns; /* drains any level; rate * drain_ns fits in 64 bits */
	__u64 each;	/* level of one packet or bit */
};

/* Twin: myelin_kernel::conform::ConformInstance. */
const volatile struct watch {
	struct limit of_packets;
	struct limit of_bits;
	__u64 most_packets; /* number of packets after which the count ends; 0: no end */
	__u32 families;	    /* set of families that the filter matches; 0: no filter */
	__u32 trial;	    /* test run: read the time from the packet */
	__u64 keep[2][KEY_WORDS];
	__u64 want[2][KEY_WORDS];
} INSTANCE INSTANCE_SECTION;

/* The level of a bucket and its maximum. */
struct level {
	__u64 now;
	__u64 most;
	__u64 most_ns; /* time of the maximum */
};

/* Consecutive packets that do not conform even with the tolerance. */
struct violation {
	__u64 from_ns;
	__u64 to_ns;
	__u64 packets;
	__u64 packets_over; /* largest excess of the levels over the bursts */
	__u64 bits_over;
};

/* Twin: myelin_kernel::conform::ConformEntry. */
struct conformance {
	struct bpf_spin_lock lock;
	__u32 violating; /* the last packet did not conform */
	__u64 first_ns;
	__u64 last_ns;
	__u64 packets;
	__u64 bytes;
	__u64 above;  /* packets above the profile */
	__u64 beyond; /* packets above the profile and the tolerance */
	__u64 violations;
	struct level of_packets;
	struct level of_bits;
	struct violation kept[VIOLATIONS]; /* the first ones */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct conformance);
	__uint(max_entries, 1);
} conformance SEC(".maps");

/* One arrival: a packet, or all segments of a GSO packet. */
struct arrival {
	__u64 now_ns;
	__u32 segments;
	__u32 each_bytes; /* of every segment except the last, which may be shorter */
	__u32 bytes;	  /* of all segments */
};

static __always_inline __u64 drained(const volatile struct limit *limit, __u64 level,
				     __u64 elapsed_ns)
{
	if (elapsed_ns > limit->drain_ns)
		return 0;

	__u64 drain = elapsed_ns * limit->rate;

	return level > drain ? level - drain : 0;
}

/* Returns how many of the segments, of cost `total` together, fit below `full`. */
static __always_inline __u32 fitting_segments(const struct arrival *arrival, __u64 level,
					      __u64 full, __u64 each, __u64 total)
{
	__u64 room = full > level ? full - level : 0;

	if (total <= room)
		return arrival->segments;
	if (arrival->segments == 1)
		return 0;

	__u64 fits = room / each;

	return fits < arrival->segments - 1 ? fits : arrival->segments - 1;
}

static __always_inline void fill(struct level *level, __u64 now, __u64 cost, __u64 now_ns)
{
	level->now = now + cost >= cost ? now + cost : ~0ULL;
	if (level->now > level->most) {
		level->most = level->now;
		level->most_ns = now_ns;
	}
}

static __always_inline __u64 excess(const volatile struct limit *limit, const struct level *level)
{
	return level->now > limit->full ? level->now - limit->full : 0;
}

/* Records packets beyond the profile: starts a violation or extends the last one. */
static __always_inline void record_violation(struct conformance *seen,
					     const struct arrival *arrival, __u32 beyond)
{
	bool begins = !seen->violating;

	seen->violating = beyond > 0;
	if (!beyond)
		return;
	seen->violations += begins;

	__u64 number = seen->violations - 1;

	if (number >= VIOLATIONS)
		return;

	struct violation *violation = &seen->kept[number & (VIOLATIONS - 1)];
	__u64 packets_over = excess(&INSTANCE.of_packets, &seen->of_packets);
	__u64 bits_over = excess(&INSTANCE.of_bits, &seen->of_bits);

	if (begins)
		violation->from_ns = arrival->now_ns;
	violation->to_ns = arrival->now_ns;
	violation->packets += beyond;
	if (packets_over > violation->packets_over)
		violation->packets_over = packets_over;
	if (bits_over > violation->bits_over)
		violation->bits_over = bits_over;
}

static __always_inline void update_monitor(struct conformance *seen, const struct arrival *arrival)
{
	const volatile struct limit *packets = &INSTANCE.of_packets, *bits = &INSTANCE.of_bits;
	__u64 packet_cost = arrival->segments * packets->each;
	__u64 bit_cost = arrival->bytes * 8ULL * bits->each;
	__u64 each_cost = arrival->each_bytes * 8ULL * bits->each;

	bpf_spin_lock(&seen->lock);
	if (INSTANCE.most_packets && seen->packets >= INSTANCE.most_packets) {
		bpf_spin_unlock(&seen->lock);
		return;
	}

	/* Another CPU with a later clock reading may have updated the monitor first. */
	__u64 elapsed_ns = arrival->now_ns > seen->last_ns ? arrival->now_ns - seen->last_ns : 0;
	__u64 in_packets = drained(packets, seen->of_packets.now, elapsed_ns);
	__u64 in_bits = drained(bits, seen->of_bits.now, elapsed_ns);
	__u32 fit_packets =
		fitting_segments(arrival, in_packets, packets->full, packets->each, packet_cost);
	__u32 fit_bits = fitting_segments(arrival, in_bits, bits->full, each_cost, bit_cost);
	__u32 near_packets =
		fitting_segments(arrival, in_packets, packets->wide, packets->each, packet_cost);
	__u32 near_bits = fitting_segments(arrival, in_bits, bits->wide, each_cost, bit_cost);
	__u32 beyond = arrival->segments - (near_packets < near_bits ? near_packets : near_bits);

	if (!seen->packets)
		seen->first_ns = arrival->now_ns;
	seen->last_ns += elapsed_ns;
	seen->packets += arrival->segments;
	seen->bytes += arrival->bytes;
	seen->above += arrival->segments - (fit_packets < fit_bits ? fit_packets : fit_bits);
	seen->beyond += beyond;
	fill(&seen->of_packets, in_packets, packet_cost, arrival->now_ns);
	fill(&seen->of_bits, in_bits, bit_cost, arrival->now_ns);
	record_violation(seen, arrival, beyond);
	bpf_spin_unlock(&seen->lock);
}

static __always_inline bool matches_filter(const struct headers *headers, union key *key)
{
	__u32 family = headers->flags & FLAG_IPV6 ? FAMILY_V6 : FAMILY_V4;
	bool same = IMMEDIATE(families) >> family & 1;

	if (!(headers->flags & FLAG_PORTS)) {
		if (family == FAMILY_V6)
			key->v6.fields.mask = NO_PORTS;
		else
			key->v4.fields.mask = NO_PORTS;
	}
#pragma unroll
	for (__u32 word = 0; word < KEY_WORDS; word++) {
		if (family == FAMILY_V6)
			same &= (key->words[word] & INSTANCE.keep[FAMILY_V6][word]) ==
				INSTANCE.want[FAMILY_V6][word];
		else
			same &= (key->words[word] & INSTANCE.keep[FAMILY_V4][word]) ==
				INSTANCE.want[FAMILY_V4][word];
	}
	return same;
}

HOOK_SECTION
int myelin_conform(hook_ctx *ctx)
{
	struct arrival arrival = {
		.now_ns = IMMEDIATE(trial) ? ctx->tstamp : bpf_ktime_get_ns(),
		.segments = hook_arriving_segments(ctx),
	};
	/* The stack has removed the tag from the frame and will add it again. */
	__u32 length = hook_length(ctx) + hook_stripped_tags(ctx) * VLAN_TAG, first = 0;
	struct conformance *seen = bpf_map_lookup_elem(&conformance, &first);
	struct headers headers = {};
	union key key = {};

	if (!seen)
		return HOOK_PASS;
	if (IMMEDIATE(families) || ctx->gso_size) {
		enum unparsed why = parse(ctx, &headers, &key);

		if (why == PARSE_PULL && hook_pull(ctx, ctx->len < HEADERS ? ctx->len : HEADERS)) {
			__builtin_memset(&headers, 0, sizeof(headers));
			__builtin_memset(&key, 0, sizeof(key));
			why = parse(ctx, &headers, &key);
		}
		if (IMMEDIATE(families) && (why || !matches_filter(&headers, &key)))
			return HOOK_PASS;
		/* The payload offset of an unparsed packet is unknown. */
		if (why)
			headers.payload = 0;
	}

	/* Each segment has its own headers. A packet from another machine may carry no segment
	 * count. */
	__u32 own = headers.payload + hook_stripped_tags(ctx) * VLAN_TAG;

	if (ctx->gso_size && !ctx->gso_segs && length > own)
		arrival.segments = (length - own + ctx->gso_size - 1) / ctx->gso_size;
	arrival.bytes = length + (arrival.segments - 1) * own;
	arrival.each_bytes = arrival.segments > 1 ? own + ctx->gso_size : arrival.bytes;
	update_monitor(seen, &arrival);
	return HOOK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
