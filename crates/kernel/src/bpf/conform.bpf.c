// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The conformance monitor: a leaky bucket in packets and one in bits. Every packet fills them; the
 * rate drains them. The monitor passes every packet unchanged. It shares no code with the policer,
 * which it checks. It computes the same levels as myelin_packet::fixtures::Meter: a packet or a bit
 * is 10^9 units of level; a rate of one per second drains one unit per nanosecond. tc only, both
 * directions.
 */
#include "instance.h"
#include "parse.h"

#define KEY_WORDS  (sizeof(union key) / sizeof(__u64))
#define VIOLATIONS 32  /* violations that the monitor keeps; a power of two */
#define HEADERS	   512 /* bytes of a frame that may hold its headers */
/* Bit of the mask field in the key of a packet without ports. A filter by ports keeps this bit. */
#define NO_PORTS 0x80

enum {
	FAMILY_V4 = 0,
	FAMILY_V6 = 1,
};

/* Same layout as myelin_kernel::conform::LeakyBucket; zero if the profile has no such bucket. */
struct leaky_bucket {
	__u64 rate;
	__u64 full;	 /* highest conforming level */
	__u64 tolerated; /* highest conforming level with the tolerance */
	__u64 drain_ns;	 /* drains any level to 0; rate * drain_ns fits in 64 bits */
	__u64 unit;	 /* level of one packet or bit */
};

/* Same layout as myelin_kernel::conform::ConformInstance. */
const volatile struct conform {
	struct leaky_bucket packet_bucket;
	struct leaky_bucket bit_bucket;
	__u64 most_packets; /* number of packets after which the count ends; 0: no end */
	__u32 families;	    /* set of families that the filter matches; 0: no filter */
	__u32 trial;	    /* test run: read the time from the packet */
	__u64 keep[2][KEY_WORDS];
	__u64 expected[2][KEY_WORDS];
} INSTANCE INSTANCE_SECTION;

/* The present and the largest level of a bucket. */
struct level {
	__u64 now;
	__u64 most;
	__u64 most_ns; /* time of the largest level */
};

/* Consecutive packets that do not conform even with the tolerance. */
struct violation {
	__u64 from_ns;
	__u64 to_ns;
	__u64 packets;
	__u64 packets_over; /* largest excess of the packet bucket over the burst */
	__u64 bits_over;    /* largest excess of the bit bucket over the burst */
};

/* Same layout as myelin_kernel::conform::ConformEntry. */
struct conformance {
	struct bpf_spin_lock lock;
	__u32 violating; /* 1: the last packet did not conform */
	__u64 first_ns;
	__u64 last_ns;
	__u64 packets;
	__u64 bytes;
	__u64 above;  /* packets above the profile */
	__u64 beyond; /* packets above the profile and the tolerance */
	__u64 violations;
	struct level packet_bucket;
	struct level bit_bucket;
	struct violation kept[VIOLATIONS]; /* the first violations */
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
	__u32 each_bytes; /* frame bytes of a segment; the last segment may be shorter */
	__u32 bytes;	  /* frame bytes of all segments */
};

static __always_inline __u64 drain_level(const volatile struct leaky_bucket *bucket, __u64 level,
					 __u64 elapsed_ns)
{
	if (elapsed_ns > bucket->drain_ns)
		return 0;

	__u64 drain = elapsed_ns * bucket->rate;

	return level > drain ? level - drain : 0;
}

/* Returns the number of segments that fit below `full`. `each` is the cost of one segment, `total`
 * the cost of all segments. */
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

static __always_inline void fill_bucket(struct level *level, __u64 now, __u64 cost, __u64 now_ns)
{
	level->now = now + cost >= cost ? now + cost : ~0ULL;
	if (level->now > level->most) {
		level->most = level->now;
		level->most_ns = now_ns;
	}
}

static __always_inline __u64 excess(const volatile struct leaky_bucket *bucket,
				    const struct level *level)
{
	return level->now > bucket->full ? level->now - bucket->full : 0;
}

/* Records packets beyond the profile: starts a violation or extends the last violation. */
static __always_inline void record_violation(struct conformance *monitor,
					     const struct arrival *arrival, __u32 beyond)
{
	bool begins = !monitor->violating;

	monitor->violating = beyond > 0;
	if (!beyond)
		return;
	monitor->violations += begins;

	__u64 number = monitor->violations - 1;

	if (number >= VIOLATIONS)
		return;

	struct violation *violation = &monitor->kept[number & (VIOLATIONS - 1)];
	__u64 packets_over = excess(&INSTANCE.packet_bucket, &monitor->packet_bucket);
	__u64 bits_over = excess(&INSTANCE.bit_bucket, &monitor->bit_bucket);

	if (begins)
		violation->from_ns = arrival->now_ns;
	violation->to_ns = arrival->now_ns;
	violation->packets += beyond;
	if (packets_over > violation->packets_over)
		violation->packets_over = packets_over;
	if (bits_over > violation->bits_over)
		violation->bits_over = bits_over;
}

static __always_inline void update_monitor(struct conformance *monitor,
					   const struct arrival *arrival)
{
	const volatile struct leaky_bucket *packets = &INSTANCE.packet_bucket,
					   *bits = &INSTANCE.bit_bucket;
	__u64 packet_cost = arrival->segments * packets->unit;
	__u64 bit_cost = arrival->bytes * 8ULL * bits->unit;
	__u64 each_cost = arrival->each_bytes * 8ULL * bits->unit;

	bpf_spin_lock(&monitor->lock);
	if (INSTANCE.most_packets && monitor->packets >= INSTANCE.most_packets) {
		bpf_spin_unlock(&monitor->lock);
		return;
	}

	/* Another CPU with a later clock reading may have updated the monitor first. */
	__u64 elapsed_ns =
		arrival->now_ns > monitor->last_ns ? arrival->now_ns - monitor->last_ns : 0;
	__u64 in_packets = drain_level(packets, monitor->packet_bucket.now, elapsed_ns);
	__u64 in_bits = drain_level(bits, monitor->bit_bucket.now, elapsed_ns);
	__u32 fitting_packets =
		fitting_segments(arrival, in_packets, packets->full, packets->unit, packet_cost);
	__u32 fitting_bits = fitting_segments(arrival, in_bits, bits->full, each_cost, bit_cost);
	__u32 tolerated_packets = fitting_segments(arrival, in_packets, packets->tolerated,
						   packets->unit, packet_cost);
	__u32 tolerated_bits =
		fitting_segments(arrival, in_bits, bits->tolerated, each_cost, bit_cost);
	__u32 beyond = arrival->segments -
		       (tolerated_packets < tolerated_bits ? tolerated_packets : tolerated_bits);

	if (!monitor->packets)
		monitor->first_ns = arrival->now_ns;
	monitor->last_ns += elapsed_ns;
	monitor->packets += arrival->segments;
	monitor->bytes += arrival->bytes;
	monitor->above += arrival->segments -
			  (fitting_packets < fitting_bits ? fitting_packets : fitting_bits);
	monitor->beyond += beyond;
	fill_bucket(&monitor->packet_bucket, in_packets, packet_cost, arrival->now_ns);
	fill_bucket(&monitor->bit_bucket, in_bits, bit_cost, arrival->now_ns);
	record_violation(monitor, arrival, beyond);
	bpf_spin_unlock(&monitor->lock);
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
				INSTANCE.expected[FAMILY_V6][word];
		else
			same &= (key->words[word] & INSTANCE.keep[FAMILY_V4][word]) ==
				INSTANCE.expected[FAMILY_V4][word];
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
	struct conformance *monitor = bpf_map_lookup_elem(&conformance, &first);
	struct headers headers = {};
	union key key = {};

	if (!monitor)
		return HOOK_PASS;
	if (IMMEDIATE(families) || ctx->gso_size) {
		enum unparsed reason = parse(ctx, &headers, &key);

		if (reason == PARSE_PULL &&
		    hook_pull(ctx, ctx->len < HEADERS ? ctx->len : HEADERS)) {
			__builtin_memset(&headers, 0, sizeof(headers));
			__builtin_memset(&key, 0, sizeof(key));
			reason = parse(ctx, &headers, &key);
		}
		if (IMMEDIATE(families) && (reason || !matches_filter(&headers, &key)))
			return HOOK_PASS;
		/* The payload offset of an unparsed packet is unknown. */
		if (reason)
			headers.payload = 0;
	}

	/* Each segment has its own headers. A packet from another machine may carry no segment
	 * count. */
	__u32 header_bytes = headers.payload + hook_stripped_tags(ctx) * VLAN_TAG;

	if (ctx->gso_size && !ctx->gso_segs && length > header_bytes)
		arrival.segments = (length - header_bytes + ctx->gso_size - 1) / ctx->gso_size;
	arrival.bytes = length + (arrival.segments - 1) * header_bytes;
	arrival.each_bytes = arrival.segments > 1 ? header_bytes + ctx->gso_size : arrival.bytes;
	update_monitor(monitor, &arrival);
	return HOOK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
