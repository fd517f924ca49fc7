/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One interface for both hooks. The build compiles each program twice. With MYELIN_HOOK_XDP the
 * metadata is in front of the frame. With MYELIN_HOOK_TC (tcx or clsact) the metadata is in
 * skb->cb: stamp low, stamp high, l3 | l4 << 16, payload | end << 16, flags | segments << 16.
 */
#ifndef MYELIN_HOOK_H
#define MYELIN_HOOK_H

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "meta.h"

/* Same values as myelin_kernel::Hook::number. */
enum hook {
	HOOK_XDP = 1,
	HOOK_TC = 2,
};

/* Offsets in a frame are below this limit, so the verifier can bound `packet + offset`. */
#define MAX_OFFSET 0x7fff

#if defined(MYELIN_HOOK_XDP)

#define THIS_HOOK    HOOK_XDP
#define HOOK_SECTION SEC("xdp")
#define HOOK_PASS    XDP_PASS
#define HOOK_DROP    XDP_DROP

typedef struct xdp_md hook_ctx;

/* Returns the length of the whole frame, bytes. */
static __always_inline __u32 hook_length(const hook_ctx *ctx)
{
	return ctx->data_end - ctx->data;
}

/* Returns the number of packets in the frame, before `hook_save`. */
static __always_inline __u32 hook_arriving_segments(const hook_ctx *ctx)
{
	return 1;
}

/* Returns the number of packets in the frame, after `hook_save`. */
static __always_inline __u32 hook_segments(const hook_ctx *ctx)
{
	return 1;
}

/* Returns the number of VLAN tags that the stack has removed from the frame. */
static __always_inline __u32 hook_stripped_tags(const hook_ctx *ctx)
{
	return 0;
}

static __always_inline bool hook_save(hook_ctx *ctx, const struct myelin_meta *meta)
{
	/* A frame that another front door redirected here still carries the metadata of that door.
	 */
	int present = ctx->data - ctx->data_meta;

	if (bpf_xdp_adjust_meta(ctx, present - (int)sizeof(*meta)))
		return false;

	struct myelin_meta *target = (void *)(long)ctx->data_meta;

	if ((void *)(target + 1) > (void *)(long)ctx->data)
		return false;
	*target = *meta;
	return true;
}

static __always_inline bool hook_stamp(const hook_ctx *ctx, __u64 *stamp_ns)
{
	const struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	*stamp_ns = meta->stamp_ns;
	return true;
}

static __always_inline bool hook_headers(const hook_ctx *ctx, struct headers *headers)
{
	const struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	headers->l3 = meta->l3;
	headers->l4 = meta->l4;
	headers->payload = meta->payload;
	headers->end = meta->end;
	headers->flags = meta->flags;
	return true;
}

/* Marks a packet that tc transmits at the interface `ifindex`. */
static __always_inline bool hook_mark_leaving(const hook_ctx *ctx, __u32 ifindex)
{
	struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	meta->stamp_ns = STAMP_LEAVING;
	meta->spi = ifindex;
	return true;
}

/* User space selects the function by the position in the metadata. */
static __always_inline bool hook_set_position(const hook_ctx *ctx, __u8 position)
{
	struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	meta->position = position;
	return true;
}

/* Sets the end of the payload, after a function changed the payload's length. */
static __always_inline bool hook_set_end(const hook_ctx *ctx, __u16 end)
{
	struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return false;
	meta->end = end;
	return true;
}

/* An XDP frame is always contiguous and writable. */
static __always_inline bool hook_pull(hook_ctx *ctx, __u32 length)
{
	return true;
}

/* With `peer` (tc only), the packet bypasses the transmit path of a veth and arrives directly at
 * the veth's far end. */
static __always_inline int hook_redirect(__u32 ifindex, bool peer)
{
	return bpf_redirect(ifindex, 0);
}

#elif defined(MYELIN_HOOK_TC)

#define THIS_HOOK    HOOK_TC
#define HOOK_SECTION SEC("tc")
/* Equals TCX_NEXT: the next program runs, then the stack. Under clsact the number means "no
 * verdict". */
#define HOOK_PASS    TC_ACT_UNSPEC
#define HOOK_DROP    TC_ACT_SHOT

typedef struct __sk_buff hook_ctx;

static __always_inline __u32 hook_length(const hook_ctx *ctx)
{
	return ctx->len;
}

static __always_inline __u32 hook_arriving_segments(const hook_ctx *ctx)
{
	__u32 segments = ctx->gso_segs, size = ctx->gso_size;

	if (segments)
		return segments;
	/* A packet from a virtual machine may carry no segment count. The computed count may exceed
	 * the number of segments by one. */
	return size ? (ctx->len + size - 1) / size : 1;
}

static __always_inline __u32 hook_segments(const hook_ctx *ctx)
{
	return ctx->cb[4] >> 16;
}

/* The stack removes the outer tag from the frame before tc runs. */
static __always_inline __u32 hook_stripped_tags(const hook_ctx *ctx)
{
	return ctx->vlan_present ? 1 : 0;
}

static __always_inline bool hook_save(hook_ctx *ctx, const struct myelin_meta *meta)
{
	ctx->cb[0] = (__u32)meta->stamp_ns;
	ctx->cb[1] = meta->stamp_ns >> 32;
	ctx->cb[2] = meta->l3 | (__u32)meta->l4 << 16;
	ctx->cb[3] = meta->payload | (__u32)meta->end << 16;
	ctx->cb[4] = meta->flags | hook_arriving_segments(ctx) << 16;
	return true;
}

static __always_inline bool hook_stamp(const hook_ctx *ctx, __u64 *stamp_ns)
{
	*stamp_ns = ctx->cb[0] | (__u64)ctx->cb[1] << 32;
	return true;
}

static __always_inline bool hook_headers(const hook_ctx *ctx, struct headers *headers)
{
	__u32 network = ctx->cb[2], payload = ctx->cb[3];

	headers->l3 = network;
	headers->l4 = network >> 16;
	headers->payload = payload;
	headers->end = payload >> 16;
	headers->flags = ctx->cb[4];
	return true;
}

static __always_inline bool hook_set_end(hook_ctx *ctx, __u16 end)
{
	ctx->cb[3] = (ctx->cb[3] & 0xffff) | (__u32)end << 16;
	return true;
}

/* Makes the first `length` bytes contiguous. Read packet pointers again afterwards. */
static __always_inline bool hook_pull(hook_ctx *ctx, __u32 length)
{
	if (ctx->data_end - ctx->data >= length)
		return true;
	return bpf_skb_pull_data(ctx, length) == 0;
}

/* Returns the interface at which XDP wants the packet transmitted; 0: none. */
static __always_inline __u32 hook_leaving_at(const hook_ctx *ctx)
{
	const struct myelin_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data || meta->stamp_ns != STAMP_LEAVING)
		return 0;
	return meta->spi;
}

static __always_inline int hook_redirect(__u32 ifindex, bool peer)
{
	return peer ? bpf_redirect_peer(ifindex, 0) : bpf_redirect(ifindex, 0);
}

#else
#error "define MYELIN_HOOK_XDP or MYELIN_HOOK_TC"
#endif

#define VLAN_TAG 4

/* Returns the bytes on the wire of a packet with `segments` segments. Each segment has its own
 * headers, which end at the offset `payload`. A VLAN tag counts even if the stack has removed the
 * tag from the frame. */
static __always_inline __u32 hook_wire_length(const hook_ctx *ctx, __u32 payload, __u32 segments)
{
	return hook_length(ctx) + (segments - 1) * payload +
	       segments * hook_stripped_tags(ctx) * VLAN_TAG;
}

#endif
