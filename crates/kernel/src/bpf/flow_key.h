/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The key of all flow tables. */
#ifndef MYELIN_FLOW_KEY_H
#define MYELIN_FLOW_KEY_H

#include "protocol.h"

/*
 * Same layout as myelin_packet::FlowKey. Addresses and ports are in network order. An IPv4 address
 * takes the first four bytes of its field. All other bytes are zero, because hash maps compare all
 * bytes.
 */
struct flow_key {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 flags; /* FLAG_IPV6, FLAG_PORTS */
	__u16 padding;
} __attribute__((aligned(8)));

_Static_assert(sizeof(struct flow_key) == 40, "the layout is shared with user space");

/* Reads the flow key of a packet. Returns false if the frame is too short. */
static __always_inline bool read_flow_key(hook_ctx *ctx, const struct headers *headers,
					  struct flow_key *key)
{
	__u8 protocol;

	if (!read_protocol(ctx, headers, &protocol))
		return false;

	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const void *l3 = data + (headers->l3 & MAX_OFFSET);

	__builtin_memset(key, 0, sizeof(*key));
	key->protocol = protocol;
	key->flags = headers->flags & (FLAG_IPV6 | FLAG_PORTS);
	if (headers->flags & FLAG_IPV6) {
		const struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(key->source, &ip->saddr, sizeof(key->source));
		__builtin_memcpy(key->destination, &ip->daddr, sizeof(key->destination));
	} else {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return false;
		key->source[0] = ip->saddr;
		key->destination[0] = ip->daddr;
	}
	if (headers->flags & FLAG_PORTS) {
		const __be16 *ports = data + (headers->l4 & MAX_OFFSET);

		if ((const void *)(ports + 2) > data_end)
			return false;
		key->source_port = ports[0];
		key->destination_port = ports[1];
	}
	return true;
}

#endif
