/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The way over an entry link: an internal veth without offloads between a port and a front door. On
 * this link the kernel segments super-packets, completes checksums and puts VLAN tags into the
 * frame. `skb->cb` does not cross a veth, but a tag does. So two service tags (IEEE 802.1ad) carry
 * the low 32 bits of the stamp, and the door behind the link restores the stamp.
 */
#ifndef MYELIN_RELAY_H
#define MYELIN_RELAY_H

#include "parse.h"

/* The tags as they stand in the frame, behind the MAC addresses. */
struct relay_tags {
	__be16 type_high;
	__be16 high;
	__be16 type_low;
	__be16 low;
};

/* The MAC addresses, in 32-bit words, and the tags behind them. */
#define MAC_WORDS 3

struct relayed_frame {
	__u32 addresses[MAC_WORDS];
	struct relay_tags tags;
};

#define RELAY_TYPE bpf_htons(ETH_P_8021AD)

/* Restores a stamp from its low 32 bits. The link holds a packet for less than 4 s. */
static __always_inline __u64 restore_stamp(__u32 high, __u32 low)
{
	__u64 now_ns = bpf_ktime_get_ns();

	return now_ns - (__u32)((__u32)now_ns - (high << 16 | low));
}

#if defined(MYELIN_HOOK_XDP)

/* Moves the tags of a frame into `tags`. Returns false without such tags. */
static __always_inline bool remove_relay_tags(hook_ctx *ctx, struct relay_tags *tags,
					      __u64 *stamp_ns)
{
	struct relayed_frame *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end ||
	    frame->tags.type_high != RELAY_TYPE || frame->tags.type_low != RELAY_TYPE)
		return false;
	*tags = frame->tags;

	__u32 addresses[MAC_WORDS] = {frame->addresses[0], frame->addresses[1],
				      frame->addresses[2]};
	__u32 *moved = (void *)frame + sizeof(*tags);

	for (int i = 0; i < MAC_WORDS; i++)
		moved[i] = addresses[i];
	*stamp_ns = restore_stamp(bpf_ntohs(tags->high), bpf_ntohs(tags->low));
	return bpf_xdp_adjust_head(ctx, sizeof(*tags)) == 0;
}

/* Passes a frame to the tc door of the port, with its tags. */
static __always_inline int pass_with_relay_tags(hook_ctx *ctx, const struct relay_tags *tags)
{
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*tags)))
		return XDP_DROP;

	struct relayed_frame *frame = (void *)(long)ctx->data;
	const __u32 *moved = (void *)frame + sizeof(*tags);

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;

	__u32 addresses[MAC_WORDS] = {moved[0], moved[1], moved[2]};

	for (int i = 0; i < MAC_WORDS; i++)
		frame->addresses[i] = addresses[i];
	frame->tags = *tags;
	return XDP_PASS;
}

#else

/* Puts a stamp into two tags, and sends the packet over the link. */
static __always_inline int send_over_link(hook_ctx *ctx, __u32 near, __u64 stamp_ns)
{
	if (bpf_skb_vlan_push(ctx, RELAY_TYPE, stamp_ns & 0xffff) ||
	    bpf_skb_vlan_push(ctx, RELAY_TYPE, stamp_ns >> 16 & 0xffff))
		return HOOK_DROP;
	return bpf_redirect(near, 0);
}

/* The stack removes the outer tag from the frame. Each pop removes the next one. */
static __always_inline bool remove_relay_tags(hook_ctx *ctx, struct relay_tags *tags,
					      __u64 *stamp_ns)
{
	__u32 high = ctx->vlan_tci;

	if (!ctx->vlan_present || ctx->vlan_proto != RELAY_TYPE || bpf_skb_vlan_pop(ctx))
		return false;

	__u32 low = ctx->vlan_tci;

	if (!ctx->vlan_present || ctx->vlan_proto != RELAY_TYPE || bpf_skb_vlan_pop(ctx))
		return false;
	*stamp_ns = restore_stamp(high, low);
	return true;
}

#endif

#endif
