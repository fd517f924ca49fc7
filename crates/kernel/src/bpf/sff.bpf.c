// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The service function forwarder (RFC 7665) between functions that stand in network namespaces of
 * their own. An instance stands where the chain begins (in its first slot), at the agent's end of
 * each function's link, where packets come back, and at the far end of a function in user space. A
 * link belongs to one position of one chain, so the way on is a constant. A black box has two
 * links: the program at the near end of the second one takes what it lets through, that of the
 * first one what it sends back.
 *
 * At tc all functions are in the kernel, and a packet goes through all of them in one piece: each
 * redirect leads to the other end of a link without a queue. There an instance stands at both ends
 * of each link, since nothing but the tag tells that a packet came by such a redirect.
 */
#if defined(MYELIN_HOOK_XDP)
#include "nsh.h"
#endif
#include "next.h"

/* What tells stamp and chain of a packet here. */
enum carrier {
	CARRIER_METADATA = 1, /* XDP: the metadata area, which survives redirects */
	CARRIER_NSH = 2,      /* XDP: the header that a worker puts in front of what it transmits */
	CARRIER_LINK = 3,     /* XDP: only the link: through a black box nothing survives */
	CARRIER_TAG = 4,      /* tc: skb->priority; skb->cb, with the stamp, survives as well */
	CARRIER_DOOR = 5,     /* tc: the front door, in the same run */
};

/* Twin: myelin_kernel::sff::Instance. */
const volatile struct sff {
	struct hop hop;
	__u32 carrier;
	__u32 spi;
	__u16 generation;
	__u16 position; /* of the function that is next */
	__u32 ingress;	/* CARRIER_NSH: where what goes back to the sender (position 0) leaves */
	__u32 out_line; /* CARRIER_LINK: counts what comes */
	__u32 tag;	/* CARRIER_TAG, CARRIER_DOOR: not 0 */
} INSTANCE INSTANCE_SECTION;

static __always_inline int refuse(const hook_ctx *ctx)
{
	count_drop(ctx, HOP(line));
	return HOOK_DROP;
}

#if defined(MYELIN_HOOK_XDP)

/* What the namespace itself sends has no metadata. */
static __always_inline bool is_of_chain(const hook_ctx *ctx)
{
	const struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	return (void *)(meta + 1) <= (void *)(long)ctx->data && meta->spi == IMMEDIATE(spi) &&
	       meta->generation == INSTANCE.generation;
}

/* Puts the metadata in front of a frame that has none. */
static __always_inline bool restore(hook_ctx *ctx, struct myelin_meta *meta)
{
	struct headers headers = {};
	union key key = {};

	if (parse(ctx, &headers, &key))
		return false;
	meta_set_headers(meta, &headers);
	return hook_save(ctx, meta);
}

/* From a worker. */
static __always_inline int decapsulate(hook_ctx *ctx)
{
	struct myelin_meta meta = {};

	if (!read_encapsulation(ctx, &meta) || meta.spi != IMMEDIATE(spi) ||
	    meta.generation != INSTANCE.generation ||
	    bpf_xdp_adjust_head(ctx, sizeof(struct encapsulation)))
		return refuse(ctx);
	if (!meta.position)
		return hook_redirect(INSTANCE.ingress, false);
	if (meta.position != INSTANCE.position || !restore(ctx, &meta))
		return refuse(ctx);
	return hop_exit(ctx);
}

/* From a black box: the packet begins anew. */
static __always_inline int stamp_anew(hook_ctx *ctx)
{
	struct myelin_meta meta = {
		.stamp_ns = bpf_ktime_get_ns(),
		.spi = IMMEDIATE(spi),
		.generation = INSTANCE.generation,
		.position = INSTANCE.position,
	};

	if (!restore(ctx, &meta))
		return refuse(ctx);
	count(ctx, counter_line(IMMEDIATE(out_line)));
	return hop_exit(ctx);
}

static __always_inline int forward(hook_ctx *ctx)
{
	if (IMMEDIATE(carrier) == CARRIER_NSH)
		return decapsulate(ctx);
	if (IMMEDIATE(carrier) == CARRIER_LINK)
		return stamp_anew(ctx);
	return is_of_chain(ctx) ? hop_exit(ctx) : refuse(ctx);
}
#else
/* A veth clears the priority of what is sent over it, so nobody else's packet has the tag. */
static __always_inline int forward(hook_ctx *ctx)
{
	bool leaves = HOP(exit) == EXIT_REDIRECT || HOP(exit) == EXIT_PEER;

	if (IMMEDIATE(carrier) == CARRIER_DOOR)
		ctx->priority = IMMEDIATE(tag);
	else if (ctx->priority != IMMEDIATE(tag))
		return refuse(ctx);
	if (leaves)
		ctx->priority = 0;
	return hop_exit(ctx);
}
#endif

HOOK_SECTION
int myelin_sff(hook_ctx *ctx)
{
	return forward(ctx);
}

char LICENSE[] SEC("license") = "GPL";
