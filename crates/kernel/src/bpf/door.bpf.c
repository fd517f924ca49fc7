// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The front door of a port: parses, classifies, counts, polices, stamps and forwards packets. Both
 * hooks of a port run this source. A chain belongs to one hook, whose door counts the chain's
 * packets. The XDP door passes all other packets, so the tc door counts the packets without a
 * chain.
 */
#include "classify.h"
#include "fragments.h"
#include "next.h"
#include "policer.h"
#include "wire.h"

/* Counter lines of a port; same order as in myelin_kernel::port. */
enum port_line {
	PORT_UNMATCHED = 0,
	/* 1 to 6: unparsed frames; the line is the value of enum unparsed. */
	PORT_LOST = 7,	    /* matched packets without room for the metadata */
	PORT_FRAGMENTS = 8, /* dropped fragments; both hooks count here */
};

#define NO_SLOT 0xffffffff

/* The link whose far end a port is. Same values as myelin_kernel::BehindLink. */
enum link {
	LINK_NONE = 0,
	LINK_ENTRY = 1, /* the entry link of another port */
	LINK_WIRE = 2,	/* frames of another node; XDP removes their headers */
};

/* Same layout as myelin_kernel::port::DoorInstance. */
const volatile struct door {
	struct counting counting;
	__u32 line;	/* the port's first counter line */
	__u32 port;	/* the port's number in the classifier */
	__u32 opposite; /* interface for packets without a chain; 0: the host's stack */
	__u32 opposite_is_peer;
	__u32 single_cpu;  /* one CPU at a time runs this program */
	__u32 fast_path;   /* slot at which most packets continue; NO_SLOT: unknown */
	__u32 behind_link; /* packets come over an internal link: enum link */
	__u32 discards;	   /* a packet socket has taken the packets */
	__u32 kernel;	   /* whose clock takes the stamps */
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

static __always_inline void count_port_packet(const hook_ctx *ctx, __u32 line)
{
	struct myelin_line *counters = counter_line_of(IMMEDIATE(line) + line);

	counters->packets += hook_arriving_segments(ctx);
	counters->bytes += hook_length(ctx);
}

static __always_inline int forward_unmatched(hook_ctx *ctx, __u32 line)
{
	if (THIS_HOOK == HOOK_XDP)
		return HOOK_PASS;
	count_port_packet(ctx, line);
	/* The stack has no use for the packets of other nodes. */
	if (IMMEDIATE(behind_link) == LINK_WIRE)
		return HOOK_DROP;
	if (!IMMEDIATE(opposite))
		return HOOK_PASS;
	return hook_redirect(IMMEDIATE(opposite), IMMEDIATE(opposite_is_peer));
}

/* Applies the chain's `onFailure` rule to a packet that cannot reach the next function. */
static __always_inline int apply_on_failure(hook_ctx *ctx, const struct chain *chain)
{
	if (chain->on_failure == ON_FAILURE_PASS)
		return forward_unmatched(ctx, PORT_UNMATCHED);
	counter_line_of(chain->line)->drops += hook_arriving_segments(ctx);
	return HOOK_DROP;
}

/* Returns whether the packet conforms to the chain's profile. Counts a packet that does not
 * conform. */
static __always_inline bool police_packet(const hook_ctx *ctx, const struct chain *chain,
					  const struct headers *headers, __u64 now_ns,
					  struct myelin_line *line)
{
	struct policer *policer = bpf_map_lookup_elem(&policers, &chain->policer);
	__u32 packets = hook_arriving_segments(ctx);
	__u32 bytes = hook_wire_length(ctx, headers->payload, packets);

	if (!policer)
		return true;
	if (THIS_HOOK == HOOK_XDP && IMMEDIATE(single_cpu)) {
		if (police(policer, now_ns, packets, bytes, true))
			return true;
	} else if (police(policer, now_ns, packets, bytes, false)) {
		return true;
	}
	line->policed += packets;
	line->policed_bytes += bytes;
	return false;
}

static __always_inline int enter_chain(hook_ctx *ctx, const struct chain *chain,
				       const struct headers *headers, __u64 stamp_ns)
{
	struct myelin_line *line = counter_line_of(chain->line);
	const struct myelin_meta meta = {
		.stamp_ns = stamp_ns,
		.spi = chain->spi,
		.generation = chain->generation,
		.flags = headers->flags,
		.l3 = headers->l3,
		.l4 = headers->l4,
		.payload = headers->payload,
		.end = headers->end,
	};

	line->packets += hook_arriving_segments(ctx);
	line->bytes += hook_length(ctx);
	line->last_ns = meta.stamp_ns;
	/* Police before the other steps, so a dropped packet costs little. */
	if (chain->policer && !police_packet(ctx, chain, headers, meta.stamp_ns, line))
		return HOOK_DROP;
	if (!hook_save(ctx, &meta)) {
		count_port_packet(ctx, PORT_LOST);
		return apply_on_failure(ctx, chain);
	}
#if defined(MYELIN_HOOK_XDP)
	if (chain->entry == ENTRY_USER)
		return redirect_to_socket(ctx) ? XDP_REDIRECT : apply_on_failure(ctx, chain);
#endif
	/* To a slot that the verifier knows, the JIT makes a direct jump. Any other jump is
	 * indirect, and expensive with retpolines. */
	if (IMMEDIATE(fast_path) != NO_SLOT && chain->slot == IMMEDIATE(fast_path))
		bpf_tail_call(ctx, &programs, IMMEDIATE(fast_path));
	bpf_tail_call(ctx, &programs, chain->slot);
	return apply_on_failure(ctx, chain);
}

/* Removes what carries the stamp over an internal link. */
static __always_inline bool remove_link_headers(hook_ctx *ctx, struct relay_tags *tags,
						__u64 *stamp_ns)
{
#if defined(MYELIN_HOOK_XDP)
	if (IMMEDIATE(behind_link) == LINK_WIRE)
		return remove_wire_header(ctx, IMMEDIATE(kernel), tags, stamp_ns);
#endif
	return remove_relay_tags(ctx, tags, stamp_ns);
}

#if defined(MYELIN_HOOK_TC)
/* Sends a packet to the front door behind the port's entry link. Only counts the packet here: the
 * door behind the link polices each segment. */
static __always_inline int relay_packet(hook_ctx *ctx, const struct chain *chain)
{
	struct myelin_line *line = counter_line_of(chain->line);
	__u32 segments = hook_arriving_segments(ctx);
	__u64 now_ns = bpf_ktime_get_ns();

	line->packets += segments;
	line->bytes += hook_length(ctx);
	line->last_ns = now_ns;

	int verdict = send_over_link(ctx, chain->slot, now_ns);

	if (verdict == HOOK_DROP)
		line->drops += segments;
	return verdict;
}
#endif

HOOK_SECTION
int myelin_door(hook_ctx *ctx)
{
	const struct masks *active = active_masks();
	struct relay_tags tags = {};
	struct headers headers = {};
	union key key = {};
	__u64 stamp_ns = 0;

#if defined(MYELIN_HOOK_TC)
	__u32 leaving_at = hook_leaving_at(ctx);

	if (leaving_at)
		return hook_redirect(leaving_at, false);
	/* Packet sockets get a packet before this program does. */
	if (IMMEDIATE(discards))
		return HOOK_DROP;
#endif
	/* No chain uses this port, so skip parsing. */
	if (!active || !(active->count4 | active->count6))
		return forward_unmatched(ctx, PORT_UNMATCHED);

	if (IMMEDIATE(behind_link) && !remove_link_headers(ctx, &tags, &stamp_ns))
		return forward_unmatched(ctx, PORT_UNMATCHED);

	enum unparsed reason = parse(ctx, &headers, &key);

#if defined(MYELIN_HOOK_TC)
	if (reason == PARSE_PULL) {
		if (!hook_pull(ctx, ctx->len))
			return forward_unmatched(ctx, UNPARSED_TRUNCATED);
		reason = parse(ctx, &headers, &key);
	}
#endif
	const struct chain *chain = NULL;

	if (__builtin_expect(headers.flags & FLAG_FRAGMENT && !reason, 0)) {
		__u32 number = classify_fragment(ctx, active, &headers, &key, IMMEDIATE(port));

		if (number == FRAGMENT_DROPPED) {
			count_port_packet(ctx, PORT_FRAGMENTS);
			return HOOK_DROP;
		}
		if (number)
			chain = bpf_map_lookup_elem(&chains, &number);
	} else if (!reason) {
		chain = classify(active, &headers, &key, IMMEDIATE(port));
	}

#if defined(MYELIN_HOOK_XDP)
	if (IMMEDIATE(behind_link) && (!chain || chain->hook != HOOK_XDP))
		return pass_with_relay_tags(ctx, &tags);
#endif
	if (!chain)
		return forward_unmatched(ctx, reason ? reason : PORT_UNMATCHED);
#if defined(MYELIN_HOOK_TC)
	if (chain->entry == ENTRY_LINK)
		return relay_packet(ctx, chain);
#endif
	if (chain->hook == THIS_HOOK)
		return enter_chain(ctx, chain, &headers,
				   IMMEDIATE(behind_link) ? stamp_ns : bpf_ktime_get_ns());
	/* The XDP door runs first and takes the packets of its chains. A packet of an XDP chain at
	 * the tc door cannot continue. */
	return THIS_HOOK == HOOK_XDP ? HOOK_PASS : apply_on_failure(ctx, chain);
}

char LICENSE[] SEC("license") = "GPL";
