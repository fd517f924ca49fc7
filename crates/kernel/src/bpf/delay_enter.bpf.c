// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Sends the packets of one direction of an impaired link to the delay line. At one end of the link:
 * at tcx ingress or egress. tc only.
 */
#include "delay.h"

/* Same layout as myelin_kernel::delay::EnterInstance. */
const volatile struct delay_enter {
	struct counting counting;
	__u32 line; /* counter line of the direction */
	__u32 near; /* near end of the internal link */
	__u32 direction;
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int myelin_delay_enter(hook_ctx *ctx)
{
	if (ctx->mark == DELAYED_MARK) {
		ctx->mark = 0;
		return HOOK_PASS;
	}

	struct myelin_line *line = counter_line(IMMEDIATE(line));
	__u32 segments = hook_arriving_segments(ctx);

	line->packets += segments;
	line->bytes += hook_length(ctx);
	if (bpf_skb_vlan_push(ctx, DIRECTION_TAG, IMMEDIATE(direction))) {
		line->drops += segments;
		return HOOK_DROP;
	}
	return bpf_redirect(IMMEDIATE(near), 0);
}

char LICENSE[] SEC("license") = "GPL";
