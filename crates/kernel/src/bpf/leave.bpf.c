// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Transmits packets that have left their chain. tc only. At the near end of the link of a
 * distributed chain's last function, if that function is in user space: the worker has counted the
 * packet and recorded its sojourn, and at tc the redirect needs no copy of the skb that AF_XDP
 * made. At an internal link, where `ifindex` is 0: the XDP program names the interface.
 */
#include "next.h"

const volatile struct {
	struct hop hop;
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int myelin_leave(hook_ctx *ctx)
{
	if (HOP(ifindex))
		return hook_redirect(HOP(ifindex), HOP(exit) == EXIT_PEER);

	__u32 leaving_at = hook_leaving_at(ctx);

	return leaving_at ? hook_redirect(leaving_at, false) : HOOK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
