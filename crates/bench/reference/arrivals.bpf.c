// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Records the arrival of each packet at the far end. The destination port identifies the chain, the
 * IP identification the packet. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Equal to those of myelin_bench::ebpf::arrivals. */
#define CHAINS	8
#define PACKETS 8192

struct {
	__u64 ns[CHAINS * PACKETS]; /* CLOCK_MONOTONIC */
} arrivals SEC(".data.arrivals");

SEC("xdp")
int record_arrival(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = (const void *)(eth + 1);
	/* These packets have no IP options. */
	const struct udphdr *udp = (const void *)(ip + 1);

	if ((const void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    ip->protocol != IPPROTO_UDP)
		return XDP_DROP;
	__u32 chain = bpf_ntohs(udp->dest) % CHAINS;
	__u32 packet = bpf_ntohs(ip->id) % PACKETS;

	arrivals.ns[chain * PACKETS + packet] = bpf_ktime_get_ns();
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
