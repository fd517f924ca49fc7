// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * At the near end of the link of a chain's last function, when that is in user space and the chain
 * is distributed: what comes is what its worker has sent off, counted and recorded as it leaves the
 * chain. So there is nothing left to do but to hand it on, and at tc that needs no copy of the skb
 * that AF_XDP has made. tc only.
 */
#include "next.h"

const volatile struct {
	struct hop hop;
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int myelin_leave(hook_ctx *ctx)
{
	return hook_redirect(HOP(ifindex), HOP(exit) == EXIT_PEER);
}

char LICENSE[] SEC("license") = "GPL";
