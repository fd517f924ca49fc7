// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* NAT, and the bare look-up in its table of mappings. */
#include "nat.bpf.c"

#define SCATTERED 0
#include "look_up.h"

static __always_inline bool look_up(const struct drawn *drawn)
{
	struct endpoint key = {
		.port = SOURCE_PORT,
		.protocol = IPPROTO_UDP,
		.is_ipv6 = drawn->is_ipv6,
	};

	__builtin_memcpy(key.address, drawn->source, sizeof(key.address));
	return bpf_map_lookup_elem(&outward, &key);
}
