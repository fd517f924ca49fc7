/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The header of a packet from a worker back into the kernel: Ethernet and NSH (RFC 8300), with the
 * metadata in the context header. Same format as myelin_packet::nsh. XDP only.
 */
#ifndef MYELIN_NSH_H
#define MYELIN_NSH_H

#include "parse.h"

/* Version 0, no OAM bit, 6 words, MD type 1, next protocol Ethernet. The TTL may be any value
 * except 0. */
#define NSH_BASE      ((6u << 16) | (1 << 8) | 3)
#define NSH_BASE_MASK 0xe03f0fffu
#define NSH_TTL_MASK  (63u << 22)

struct encapsulation {
	struct ethhdr ethernet;
	__be32 base;
	__be32 path; /* service path identifier << 8 | service index */
	__be32 stamp_high;
	__be32 stamp_low;
	__be16 generation;
	__u8 position;
	__u8 flags;
	__be32 kernel; /* whose clock took the stamp; 0 on an internal link */
} __attribute__((packed));

_Static_assert(sizeof(struct encapsulation) == 38, "the layout is shared with user space");

/* Reads the encapsulation into `meta`. Does not set the header offsets of `meta`. */
static __always_inline bool read_encapsulation(const hook_ctx *ctx, struct myelin_meta *meta)
{
	const struct encapsulation *outer = (void *)(long)ctx->data;

	if ((const void *)(outer + 1) > (void *)(long)ctx->data_end)
		return false;

	__u32 base = bpf_ntohl(outer->base), path = bpf_ntohl(outer->path);

	if (outer->ethernet.h_proto != bpf_htons(ETH_P_NSH) || (base & NSH_BASE_MASK) != NSH_BASE ||
	    !(base & NSH_TTL_MASK) || (path & 0xff) != 255u - outer->position)
		return false;
	meta->stamp_ns = (__u64)bpf_ntohl(outer->stamp_high) << 32 | bpf_ntohl(outer->stamp_low);
	meta->spi = path >> 8;
	meta->generation = bpf_ntohs(outer->generation);
	meta->position = outer->position;
	return true;
}

static __always_inline void meta_set_headers(struct myelin_meta *meta,
					     const struct headers *headers)
{
	meta->flags = headers->flags;
	meta->l3 = headers->l3;
	meta->l4 = headers->l4;
	meta->payload = headers->payload;
	meta->end = headers->end;
}

#endif
