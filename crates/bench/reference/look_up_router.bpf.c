// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Compares the router with only its longest-prefix-match look-up. */
#include "router.bpf.c"

#define SCATTERED 1
#include "look_up.h"

static __always_inline bool look_up(const struct drawn *drawn)
{
	const struct in6_addr *address = (const void *)drawn->destination;

	return drawn->is_ipv6 ? look_up6(address) : look_up4(drawn->destination[0]);
}
