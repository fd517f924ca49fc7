// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Delivers the packets of the delay line: removes the tag and redirects the packet to the end of
 * its direction. At the near end of the internal link. tc only.
 */
#include "delay.h"

/* Same layout as myelin_kernel::delay::LineInstance. */
const volatile struct delay_leave {
	struct counting counting;
	__u32 line; /* counter line of the packets from the delay line */
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

/* The end of a direction. Same layout as myelin_kernel::delay::DirectionEnd. */
struct direction_end {
	__u32 ifindex; /* 0: the direction does not exist */
	__u32 flags;   /* 0: transmit at the interface; BPF_F_INGRESS: arrive at the interface */
};

/* The index is the number of the direction. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct direction_end);
	__uint(max_entries, 1);
} ends SEC(".maps");

HOOK_SECTION
int myelin_delay_leave(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(IMMEDIATE(line));
	__u32 direction = ctx->vlan_tci & DIRECTION_MASK;

	line->packets++;
	line->bytes += hook_length(ctx);
	/* The stack has removed the outer tag from the frame. */
	if (!ctx->vlan_present || ctx->vlan_proto != DIRECTION_TAG)
		goto drop;

	const struct direction_end *end = bpf_map_lookup_elem(&ends, &direction);

	if (!end || !end->ifindex)
		goto drop;

	__u32 ifindex = end->ifindex, flags = end->flags;

	if (bpf_skb_vlan_pop(ctx))
		goto drop;
	ctx->mark = DELAYED_MARK;
	return bpf_redirect(ifindex, flags);
drop:
	line->drops++;
	return HOOK_DROP;
}

char LICENSE[] SEC("license") = "GPL";
