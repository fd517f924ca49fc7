// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Behind the last function of a chain whose traffic the egress interface shapes: counts the packet
 * out and hands it to its class of the interface's queueing discipline, which finds it by the
 * priority. Not to the far end of a veth, which would go past every queue. tc only.
 */
#include "next.h"

const volatile struct {
	struct hop hop;
	__u32 class;
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int myelin_depart(hook_ctx *ctx)
{
	if (!hop_count_out(ctx))
		return HOOK_DROP;
	ctx->priority = IMMEDIATE(class);
	return hook_redirect(HOP(ifindex), false);
}

char LICENSE[] SEC("license") = "GPL";
