// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The end of the way, where each packet's arrival is noted: by its destination port, which tells
 * the chain, and its IP identification, which numbers the packet and is part of no flow's name. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Twins: myelin_bench::ebpf::departures. */
#define CHAINS	8
#define PACKETS 8192

struct {
	__u64 ns[CHAINS * PACKETS]; /* CLOCK_MONOTONIC */
} departures SEC(".data.departures");

SEC("xdp")
int note(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = (const void *)(eth + 1);
	/* Nothing here has IP options. */
	const struct udphdr *udp = (const void *)(ip + 1);

	if ((const void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    ip->protocol != IPPROTO_UDP)
		return XDP_DROP;
	__u32 chain = bpf_ntohs(udp->dest) % CHAINS;
	__u32 packet = bpf_ntohs(ip->id) % PACKETS;

	departures.ns[chain * PACKETS + packet] = bpf_ktime_get_ns();
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
