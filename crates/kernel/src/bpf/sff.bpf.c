// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The service function forwarder (RFC 7665) between functions in their own network namespaces. The
 * forwarder runs in the first slot of the chain, at the near end of each function's link, and at
 * the inner end for a function in user space. A link belongs to one position of one chain, so the
 * next hop is a constant. A black box has two links. The program at the near end of the second link
 * takes the packets that the box forwards. The program at the near end of the first link takes the
 * packets that the box sends back.
 *
 * At tc all functions are in the kernel, and a packet passes all functions in one run. Each
 * redirect delivers the packet to the other end of a link without a queue. At tc an instance runs
 * at both ends of each link, because only the tag identifies packets of such a redirect.
 */
#if defined(MYELIN_HOOK_XDP)
#include "nsh.h"
#endif
#include "next.h"

/* The carrier of a packet's stamp and chain at this point. */
enum carrier {
	CARRIER_METADATA = 1, /* XDP: the metadata area, which survives redirects */
	CARRIER_NSH = 2,      /* XDP: the header that a worker writes before its packets */
	CARRIER_LINK = 3,     /* XDP: only the link, because a black box removes all metadata */
	CARRIER_TAG = 4,      /* tc: skb->priority; the stamp in skb->cb survives, too */
	CARRIER_DOOR = 5,     /* tc: the front door, in the same run */
};

/* Same layout as myelin_kernel::sff::programs::Forwarder. */
const volatile struct sff {
	struct hop hop;
	__u32 carrier;
	__u32 spi;
	__u16 generation;
	__u16 position; /* position of the next function */
	__u32 ingress;	/* CARRIER_NSH: interface for replies to the sender (position 0) */
	__u32 by_stack; /* CARRIER_NSH: replies leave by the stack; CARRIER_LINK: all packets are
			 * replies, and leave by the stack */
	__u32 out_line; /* CARRIER_LINK: counter line for packets from the black box */
	__u32 tag;	/* CARRIER_TAG, CARRIER_DOOR: not 0 */
} INSTANCE INSTANCE_SECTION;

static __always_inline int drop_foreign(const hook_ctx *ctx)
{
	count_drop(ctx, HOP(line));
	return HOOK_DROP;
}

#if defined(MYELIN_HOOK_XDP)

/* Packets of the namespace's own stack carry no metadata. */
static __always_inline bool belongs_to_chain(const hook_ctx *ctx)
{
	const struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	return (void *)(meta + 1) <= (void *)(long)ctx->data && meta->spi == IMMEDIATE(spi) &&
	       meta->generation == INSTANCE.generation;
}

/* Writes the metadata in front of a frame without metadata. */
static __always_inline bool restore_metadata(hook_ctx *ctx, struct myelin_meta *meta)
{
	struct headers headers = {};
	union key key = {};

	if (parse(ctx, &headers, &key))
		return false;
	meta_set_headers(meta, &headers);
	return hook_save(ctx, meta);
}

/* Passes a reply to tc, which transmits the reply at the ingress. */
static __always_inline int reply_by_stack(hook_ctx *ctx, struct myelin_meta *meta)
{
	meta->stamp_ns = STAMP_LEAVING;
	meta->spi = INSTANCE.ingress;
	return hook_save(ctx, meta) ? HOOK_PASS : drop_foreign(ctx);
}

/* Removes the headers of a packet from a worker and forwards the packet. */
static __always_inline int decapsulate(hook_ctx *ctx)
{
	struct myelin_meta meta = {};

	if (!read_encapsulation(ctx, &meta) || meta.spi != IMMEDIATE(spi) ||
	    meta.generation != INSTANCE.generation ||
	    bpf_xdp_adjust_head(ctx, sizeof(struct encapsulation)))
		return drop_foreign(ctx);
	if (!meta.position)
		return INSTANCE.by_stack ? reply_by_stack(ctx, &meta)
					 : hook_redirect(INSTANCE.ingress, false);
	if (meta.position != INSTANCE.position || !restore_metadata(ctx, &meta))
		return drop_foreign(ctx);
	return hop_exit(ctx);
}

/* Stamps a packet from a black box again and forwards the packet. */
static __always_inline int restamp_packet(hook_ctx *ctx)
{
	struct myelin_meta meta = {
		.stamp_ns = bpf_ktime_get_ns(),
		.spi = IMMEDIATE(spi),
		.generation = INSTANCE.generation,
		.position = INSTANCE.position,
	};

	if (INSTANCE.by_stack) {
		count(ctx, counter_line(IMMEDIATE(out_line)));
		return reply_by_stack(ctx, &meta);
	}
	if (!restore_metadata(ctx, &meta))
		return drop_foreign(ctx);
	count(ctx, counter_line(IMMEDIATE(out_line)));
	return hop_exit(ctx);
}

static __always_inline int forward_packet(hook_ctx *ctx)
{
	if (IMMEDIATE(carrier) == CARRIER_NSH)
		return decapsulate(ctx);
	if (IMMEDIATE(carrier) == CARRIER_LINK)
		return restamp_packet(ctx);
	return belongs_to_chain(ctx) ? hop_exit(ctx) : drop_foreign(ctx);
}
#else
/* A veth clears the priority of every packet, so only packets of such a redirect have the tag. */
static __always_inline int forward_packet(hook_ctx *ctx)
{
	bool leaves = HOP(exit) == EXIT_REDIRECT || HOP(exit) == EXIT_PEER;

	if (IMMEDIATE(carrier) == CARRIER_DOOR)
		ctx->priority = IMMEDIATE(tag);
	else if (ctx->priority != IMMEDIATE(tag))
		return drop_foreign(ctx);
	if (leaves)
		ctx->priority = 0;
	return hop_exit(ctx);
}
#endif

HOOK_SECTION
int myelin_sff(hook_ctx *ctx)
{
	return forward_packet(ctx);
}

char LICENSE[] SEC("license") = "GPL";
