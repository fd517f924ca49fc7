// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* A policer for a Linux router: a token bucket of packets in a classifier of tc. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#define BURST  1000ULL
#define PERIOD 100ULL /* ns a packet: a higher rate than any router here forwards */

struct bucket {
	struct bpf_spin_lock lock;
	__u64 tokens_ns;
	__u64 last_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct bucket);
	__uint(max_entries, 1);
} buckets SEC(".maps");

SEC("tc")
int tc_police(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 now_ns = bpf_ktime_get_ns();
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &zero);
	int verdict = TC_ACT_SHOT;

	if (!bucket)
		return TC_ACT_SHOT;
	bpf_spin_lock(&bucket->lock);
	__u64 tokens_ns = bucket->tokens_ns + (now_ns - bucket->last_ns);

	if (tokens_ns > BURST * PERIOD)
		tokens_ns = BURST * PERIOD;
	bucket->last_ns = now_ns;
	if (tokens_ns >= PERIOD) {
		tokens_ns -= PERIOD;
		verdict = TC_ACT_OK;
	}
	bucket->tokens_ns = tokens_ns;
	bpf_spin_unlock(&bucket->lock);
	return verdict;
}

char LICENSE[] SEC("license") = "GPL";
