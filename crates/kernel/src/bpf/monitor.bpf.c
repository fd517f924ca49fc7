// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Counts packets and bytes by five-tuple. Forwards every packet unchanged.
 *
 * The table is an LRU hash with values per CPU. To make room, the kernel evicts the least recently
 * used flow. Each counter has one writer. Each segment of a GSO packet counts as a packet.
 */
#include "flow_totals.h"
#include "next.h"

const volatile struct {
	struct hop hop;
} INSTANCE INSTANCE_SECTION;

/* Same layout as myelin_packet::FlowCounts. */
struct flow_counts {
	__u64 packets;
	__u64 bytes;
	__u64 first_ns; /* 0: no packet on this CPU */
	__u64 last_ns;
};

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow_counts);
	__uint(max_entries, 1);
} flows SEC(".maps");

/* Returns the entry of a flow. Inserts the entry if it is missing. */
static __always_inline struct flow_counts *find_or_insert(const struct flow_key *key,
							  struct flow_totals *totals)
{
	struct flow_counts *counts = bpf_map_lookup_elem(&flows, key);

	if (counts)
		return counts;

	struct flow_counts none = {};

	/* The update also fails if another CPU inserted the flow first. */
	if (bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST) == 0)
		totals->inserted++;
	return bpf_map_lookup_elem(&flows, key);
}

static __always_inline void count_flow(hook_ctx *ctx)
{
	__u32 zero = 0;
	struct flow_totals *totals = bpf_map_lookup_elem(&flow_totals, &zero);
	struct headers headers;
	struct flow_key key;
	__u64 now_ns;

	if (!totals)
		return;
	if (!hook_headers(ctx, &headers) || !hook_stamp(ctx, &now_ns) ||
	    !read_flow_key(ctx, &headers, &key)) {
		totals->untracked += hook_segments(ctx);
		return;
	}

	struct flow_counts *counts = find_or_insert(&key, totals);

	if (!counts) {
		totals->untracked += hook_segments(ctx);
		return;
	}
	counts->packets += hook_segments(ctx);
	counts->bytes += hook_length(ctx);
	if (!counts->first_ns)
		counts->first_ns = now_ns;
	counts->last_ns = now_ns;
}

HOOK_SECTION
int myelin_monitor(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);

	count_flow(ctx);
	hop_leave(line, entered);
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
