/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Reads the IP protocol of a packet that the front door has parsed. */
#ifndef MYELIN_PROTOCOL_H
#define MYELIN_PROTOCOL_H

#include "parse.h"

/*
 * The metadata does not hold the protocol, so the program reads the IP header. If the packet has
 * IPv6 extension headers, the program walks these headers again.
 */
static __always_inline bool read_protocol(hook_ctx *ctx, const struct headers *headers,
					  __u8 *protocol)
{
	const struct packet packet = {
		.data = (void *)(long)ctx->data,
		.data_end = (void *)(long)ctx->data_end,
		.length = hook_length(ctx),
	};
	__u32 l3 = headers->l3 & MAX_OFFSET;

	if (!(headers->flags & FLAG_IPV6)) {
		const struct iphdr *ip = packet.data + l3;

		if ((const void *)(ip + 1) > packet.data_end)
			return false;
		*protocol = ip->protocol;
		return true;
	}

	const struct ipv6hdr *ip = packet.data + l3;

	if ((const void *)(ip + 1) > packet.data_end)
		return false;

	*protocol = ip->nexthdr;
	if (headers->l4 != l3 + sizeof(*ip)) {
		__u64 walk = walk_extensions(ctx, l3 + sizeof(*ip), headers->l4, ip->nexthdr);

		if (WALK_REASON(walk))
			return false;
		*protocol = WALK_PROTOCOL(walk);
	}
	return true;
}

#endif
