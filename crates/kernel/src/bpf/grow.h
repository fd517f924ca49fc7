/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Grows frames at their tail.
 *
 * hook_grow() makes a frame of `length` bytes longer by `growth` bytes, at most MAX_GROWTH. The new
 * bytes are undefined. Read packet pointers again afterwards. Returns false if there is no room.
 */
#ifndef MYELIN_GROW_H
#define MYELIN_GROW_H

#include "hook.h"

#if defined(MYELIN_HOOK_XDP)

/* Most bytes of growth. */
#define MAX_GROWTH 16

/* Longest frame that grows: MTU 1500, an Ethernet header and two VLAN tags. */
#define MAX_MOVED 1536

#define MOVE(type, to)                                        \
	do {                                                  \
		*(type *)(to) = *(type *)((to) + MAX_GROWTH); \
		(to) += sizeof(type);                         \
	} while (0)

/* Moves `length` bytes from offset MAX_GROWTH to the start of the frame. */
static __always_inline bool move_to_front(const hook_ctx *ctx, __u32 length)
{
	volatile __u8 *to = (void *)(long)ctx->data;
	volatile __u8 *const start = to;
	const void *end = (void *)(long)ctx->data_end;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_MOVED / 64; i++) {
		if (i >= length / 64)
			break;
		if ((void *)to + MAX_GROWTH + 64 > end)
			return false;
		for (int word = 0; word < 8; word++)
			MOVE(volatile __u64, to);
	}
	to = start + (length & (MAX_OFFSET & ~63));
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 7; i++) {
		if (i >= (length & 63) / 8)
			break;
		if ((void *)to + MAX_GROWTH + 8 > end)
			return false;
		MOVE(volatile __u64, to);
	}
	to = start + (length & (MAX_OFFSET & ~7));
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 7; i++) {
		if (i >= (length & 7))
			break;
		if ((void *)to + MAX_GROWTH + 1 > end)
			return false;
		MOVE(volatile __u8, to);
	}
	return true;
}

/*
 * A frame that the driver has just copied (veth) may have no room at its tail. Such a frame always
 * has headroom, so the program moves the whole frame.
 */
static __always_inline bool hook_grow(hook_ctx *ctx, __u32 length, __u32 growth)
{
	if (bpf_xdp_adjust_tail(ctx, (int)growth) == 0)
		return true;
	if (bpf_xdp_adjust_head(ctx, -MAX_GROWTH) || !move_to_front(ctx, length))
		return false;
	return growth == MAX_GROWTH || bpf_xdp_adjust_tail(ctx, (int)growth - MAX_GROWTH) == 0;
}

#elif defined(MYELIN_HOOK_TC)

/*
 * Makes the frame contiguous. The kernel discards the checksum of a NIC over the whole frame
 * (CHECKSUM_COMPLETE).
 */
static __always_inline bool hook_grow(hook_ctx *ctx, __u32 length, __u32 growth)
{
	return bpf_skb_change_tail(ctx, length + growth, 0) == 0;
}

#endif

#endif
