// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Puts the time of arrival into the metadata and hands the frame to the delay line's AF_XDP socket.
 * So the delay counts from here, however late the worker wakes up. At the far end of the internal
 * link. XDP only. The worker checks the tag. Without a socket the link drops all packets.
 */
#include "delay.h"

/* Same layout as myelin_kernel::delay::LineInstance. */
const volatile struct delay_stamp {
	struct counting counting;
	__u32 line; /* counter line of the packets to the delay line */
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

/* AF_XDP sockets by receive queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} sockets SEC(".maps");

HOOK_SECTION
int myelin_delay_stamp(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(IMMEDIATE(line));
	const struct myelin_meta meta = {.stamp_ns = bpf_ktime_get_ns()};

	line->packets++;
	line->bytes += hook_length(ctx);
	if (!hook_save(ctx, &meta)) {
		line->drops++;
		return HOOK_DROP;
	}
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, HOOK_DROP);
}

char LICENSE[] SEC("license") = "GPL";
