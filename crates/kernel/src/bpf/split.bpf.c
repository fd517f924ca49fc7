// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Sends each flow of a part to one of several next parts, which hold replicas of a function. Runs
 * at the far end of the part's exit link, and redirects each packet into the exit link of one path.
 * Both directions of a flow have the same target.
 */
#include "wire.h"
#include "maglev.h"

/* Same value as myelin_spec::part::MAX_REPLICAS. */
#define MAX_TARGETS 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct table);
	__uint(max_entries, 1);
} maglev SEC(".maps");

/* Indices of the near ends of the paths' exit links. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, MAX_TARGETS);
} targets SEC(".maps");

/* Changes the key into the same key for both directions. Same as myelin_packet::FlowKey::canonical.
 */
static __always_inline void make_canonical(struct flow_key *key)
{
	__u64 *words = (__u64 *)key;
	__u16 from = bpf_ntohs(key->source_port), to = bpf_ntohs(key->destination_port);
	bool is_after = words[0] != words[2]   ? words[0] > words[2]
			: words[1] != words[3] ? words[1] > words[3]
					       : from > to;

	if (!is_after)
		return;
	for (int i = 0; i < 2; i++) {
		__u64 word = words[i];

		words[i] = words[2 + i];
		words[2 + i] = word;
	}
	key->source_port = bpf_htons(to);
	key->destination_port = bpf_htons(from);
}

/* Returns the number of the packet's target. All frames that are not IP have one target. Not
 * inline, because the compiler would use the packet's length as its end, which the verifier
 * forbids. */
static __noinline __u32 choose_target(hook_ctx *ctx, const struct table *table)
{
	struct headers headers = {};
	union key fields = {};
	struct flow_key key = {};

	if (parse(ctx, &headers, &fields) == PARSED && read_flow_key(ctx, &headers, &key))
		make_canonical(&key);
	return find_backend_number(table, &key);
}

HOOK_SECTION
int myelin_split(hook_ctx *ctx)
{
	__u32 zero = 0;
	__u64 stamp_ns = 0;
	const struct table *table = bpf_map_lookup_elem(&maglev, &zero);

	if (!table || !take_stamp(ctx, &stamp_ns))
		return HOOK_DROP;

	__u32 number = choose_target(ctx, table);
	const __u32 *target = bpf_map_lookup_elem(&targets, &number);

	if (!target || !*target || (stamp_ns && !put_stamp_in_front(ctx, stamp_ns)))
		return HOOK_DROP;
	return bpf_redirect(*target, 0);
}

char LICENSE[] SEC("license") = "GPL";
