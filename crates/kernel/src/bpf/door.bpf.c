// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The front door of a port: parse, classify, count, police, stamp, hand on. Both hooks of a port
 * run this source. A chain belongs to one hook and is counted there; the XDP door passes on
 * whatever is not its own, so what no chain takes is seen, and counted, by the tc door.
 */
#include "classify.h"
#include "next.h"
#include "policer.h"

/* Lines of a port's block of counters; twin: myelin_kernel::port. */
enum port_line {
	PORT_UNMATCHED = 0,
	/* 1 to 6: not parsed, by enum unparsed. */
	PORT_LOST = 7, /* matched, but the metadata found no room */
};

#define NO_SLOT	 0xffffffff
#define VLAN_TAG 4

/* Twin: myelin_kernel::port::Door. */
const volatile struct door {
	struct counting counting;
	__u32 line;	/* first of the port's block */
	__u32 port;	/* the port's number in the classifier */
	__u32 opposite; /* interface for what no chain takes; 0: the host's stack */
	__u32 opposite_is_peer;
	__u32 alone;  /* only one CPU at a time runs this program */
	__u32 likely; /* slot where most packets go on; NO_SLOT: not known */
} INSTANCE INSTANCE_SECTION;

static __always_inline void count_at(const hook_ctx *ctx, __u32 line)
{
	struct myelin_line *at = counter_line_of(IMMEDIATE(line) + line);

	at->packets += hook_arriving_segments(ctx);
	at->bytes += hook_length(ctx);
}

static __always_inline int unmatched(hook_ctx *ctx, __u32 line)
{
	if (THIS_HOOK == HOOK_XDP)
		return HOOK_PASS;
	count_at(ctx, line);
	if (!IMMEDIATE(opposite))
		return HOOK_PASS;
	return hook_redirect(IMMEDIATE(opposite), IMMEDIATE(opposite_is_peer));
}

/* A packet of a chain that cannot be handed on. */
static __always_inline int failed(hook_ctx *ctx, const struct chain *chain)
{
	if (chain->on_failure == ON_FAILURE_PASS)
		return unmatched(ctx, PORT_UNMATCHED);
	counter_line_of(chain->line)->drops += hook_arriving_segments(ctx);
	return HOOK_DROP;
}

/* Bytes on the wire: each segment of a GSO packet has headers of its own, and a VLAN tag is part
 * of the frame wherever it lies. */
static __always_inline __u32 wire_length(const hook_ctx *ctx, const struct headers *headers,
					 __u32 packets)
{
	return hook_length(ctx) + (packets - 1) * headers->payload +
	       packets * hook_stripped_tags(ctx) * VLAN_TAG;
}

/* Whether the packet keeps to the chain's profile; counts it if not. */
static __always_inline bool conforms(const hook_ctx *ctx, const struct chain *chain,
				     const struct headers *headers, __u64 now_ns,
				     struct myelin_line *line)
{
	struct policer *policer = bpf_map_lookup_elem(&policers, &chain->policer);
	__u32 packets = hook_arriving_segments(ctx);
	__u32 bytes = wire_length(ctx, headers, packets);

	if (!policer)
		return true;
	if (THIS_HOOK == HOOK_XDP && IMMEDIATE(alone)) {
		if (police(policer, now_ns, packets, bytes, true))
			return true;
	} else if (police(policer, now_ns, packets, bytes, false)) {
		return true;
	}
	line->policed += packets;
	line->policed_bytes += bytes;
	return false;
}

static __always_inline int enter(hook_ctx *ctx, const struct chain *chain,
				 const struct headers *headers)
{
	struct myelin_line *line = counter_line_of(chain->line);
	const struct myelin_meta meta = {
		.stamp_ns = bpf_ktime_get_ns(),
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
	/* Before anything is spent on it. */
	if (chain->policer && !conforms(ctx, chain, headers, meta.stamp_ns, line))
		return HOOK_DROP;
	if (!hook_save(ctx, &meta)) {
		count_at(ctx, PORT_LOST);
		return failed(ctx, chain);
	}
#if defined(MYELIN_HOOK_XDP)
	if (chain->entry == ENTRY_USER)
		return to_user(ctx) ? XDP_REDIRECT : failed(ctx, chain);
#endif
	/* The JIT makes a jump to a slot that the verifier knows direct; any other one is indirect,
	 * which retpolines make dear. */
	if (IMMEDIATE(likely) != NO_SLOT && chain->slot == IMMEDIATE(likely))
		bpf_tail_call(ctx, &programs, IMMEDIATE(likely));
	bpf_tail_call(ctx, &programs, chain->slot);
	return failed(ctx, chain);
}

HOOK_SECTION
int myelin_door(hook_ctx *ctx)
{
	const struct masks *active = active_masks();
	struct headers headers = {};
	union key key = {};

	/* No chain enters at this port: what its frames are is nobody's question. */
	if (!active || !(active->count4 | active->count6))
		return unmatched(ctx, PORT_UNMATCHED);

	enum unparsed why = parse(ctx, &headers, &key);

#if defined(MYELIN_HOOK_TC)
	if (why == PARSE_PULL) {
		if (!hook_pull(ctx, ctx->len))
			return unmatched(ctx, UNPARSED_TRUNCATED);
		why = parse(ctx, &headers, &key);
	}
#endif
	if (why)
		return unmatched(ctx, why);

	const struct chain *chain = classify(active, &headers, &key, IMMEDIATE(port));

	if (!chain)
		return unmatched(ctx, PORT_UNMATCHED);
	if (chain->hook == THIS_HOOK)
		return enter(ctx, chain, &headers);
	/* The XDP door comes first and keeps what is its own: what gets past it could not be handed
	 * on. */
	return THIS_HOOK == HOOK_XDP ? HOOK_PASS : failed(ctx, chain);
}

char LICENSE[] SEC("license") = "GPL";
