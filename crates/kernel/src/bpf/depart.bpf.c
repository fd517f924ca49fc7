// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Runs after the last function of a chain if the egress interface shapes the traffic. Counts the
 * packet. Then sets either the packet's class of the queueing discipline (the priority) or the
 * packet's departure time. Does not redirect to the far end of a veth, because that path bypasses
 * every queue. tc only.
 */
#include "departure.h"
#include "next.h"

const volatile struct {
	struct hop hop;
	__u32 class;
	__u32 shaper; /* number of the shaper; 0: the class shapes */
} INSTANCE INSTANCE_SECTION;

/* Records a sojourn that ends at the departure time, so the sojourn includes the delay. */
static __always_inline int set_departure_time(hook_ctx *ctx)
{
	__u32 number = IMMEDIATE(shaper);
	struct policer *shaper = bpf_map_lookup_elem(&policers, &number);
	__u32 packets = hook_segments(ctx);
	struct headers headers;
	__u64 departs_ns;

	if (!shaper || !hook_headers(ctx, &headers))
		return hop_drop(ctx, counter_line(HOP(line)));
	departs_ns = departure_ns(shaper, bpf_ktime_get_ns(), packets,
				  hook_wire_length(ctx, headers.payload, packets));
	if (!departs_ns || !hop_count_out_at(ctx, departs_ns))
		return HOOK_DROP;
	bpf_skb_set_tstamp(ctx, departs_ns, BPF_SKB_TSTAMP_DELIVERY_MONO);
	return hook_redirect(HOP(ifindex), false);
}

HOOK_SECTION
int myelin_depart(hook_ctx *ctx)
{
	if (IMMEDIATE(shaper))
		return set_departure_time(ctx);
	if (!hop_count_out(ctx))
		return HOOK_DROP;
	ctx->priority = IMMEDIATE(class);
	return hook_redirect(HOP(ifindex), false);
}

char LICENSE[] SEC("license") = "GPL";
