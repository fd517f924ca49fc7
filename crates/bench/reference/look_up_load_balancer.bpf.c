// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The load balancer, and the bare look-up in its table of flows. */
#include "load_balancer.bpf.c"

#define SCATTERED 0
#include "look_up.h"

static __always_inline bool look_up(const struct drawn *drawn)
{
	struct flow_key key = {
		.source_port = bpf_htons(SOURCE_PORT),
		.destination_port = bpf_htons(DESTINATION_PORT),
		.protocol = IPPROTO_UDP,
		.flags = FLAG_PORTS | (drawn->is_ipv6 ? FLAG_IPV6 : 0),
	};

	__builtin_memcpy(key.source, drawn->source, sizeof(key.source));
	__builtin_memcpy(key.destination, drawn->destination, sizeof(key.destination));
	return bpf_map_lookup_elem(&flows, &key);
}
