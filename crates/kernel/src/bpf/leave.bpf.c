// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Runs at the near end of the link of a distributed chain's last function, if that function is in
 * user space. The worker has already counted the packet and recorded its sojourn, so this program
 * only redirects the packet. At tc the redirect needs no copy of the skb that AF_XDP made. tc only.
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
