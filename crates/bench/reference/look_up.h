/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Packets of random flows, for programs that compare a function with the bare look-up in its map. A
 * file that includes this also includes the function's code, and defines
 *
 *   static bool look_up(const struct drawn *drawn)   whether the map contains the flow
 *   SCATTERED                                        1: the destination differs, else the source
 *
 * A run draws a flow, rewrites the packet to this flow, and tail-calls the function, or `forward`
 * with or without the bare look-up before it.
 */
#ifndef MYELIN_LOOK_UP_H
#define MYELIN_LOOK_UP_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

/* Equal to those of myelin_bench::experiments::look_ups. */
#define FLOWS		 100000
#define HOT		 7
#define CLIENTS_V4	 0x0a000000u
#define CLIENTS_V6	 0xfd000000u
#define SERVICE		 0x00ee0001u
#define SOURCE_PORT	 40000
#define DESTINATION_PORT 9000

/* Slots of `programs`. */
enum {
	SLOT_FUNCTION = 0,
	SLOT_FORWARD = 1,
};

struct drawn {
	__be32 source[4];
	__be32 destination[4];
	bool is_ipv6;
};

static __always_inline bool look_up(const struct drawn *drawn);

static __always_inline __u64 scramble(__u64 number)
{
	number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9ULL;
	number = (number ^ number >> 27) * 0x94d049bb133111ebULL;
	return number ^ number >> 31;
}

/* The addresses of a flow; IPv4 addresses are in the first words. */
static __always_inline void set_addresses(struct drawn *drawn, __u32 number)
{
	__u32 client = SCATTERED ? 0 : number;
	__u64 scattered = scramble(number);

	if (drawn->is_ipv6) {
		__u64 high = scattered >> 3 | 1ULL << 61;

		drawn->source[0] = bpf_htonl(CLIENTS_V6);
		drawn->source[3] = bpf_htonl(client);
		drawn->destination[0] = bpf_htonl(SCATTERED ? high >> 32 : CLIENTS_V6);
		drawn->destination[1] = bpf_htonl(SCATTERED ? high : 0);
		drawn->destination[3] = bpf_htonl(SCATTERED ? 0 : SERVICE);
	} else {
		drawn->source[0] = bpf_htonl(CLIENTS_V4 + client);
		drawn->destination[0] =
			bpf_htonl(SCATTERED ? scattered >> 32 : CLIENTS_V4 + SERVICE);
	}
}

static __always_inline void write_ports(struct udphdr *udp)
{
	udp->source = bpf_htons(SOURCE_PORT);
	udp->dest = bpf_htons(DESTINATION_PORT);
	/* Zero would mean no checksum. */
	udp->check = 0x1234;
}

/* Rewrites the packet to the flow. */
static __always_inline bool rewrite_packet(hook_ctx *ctx, struct drawn *drawn, __u32 number)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	void *l3 = ethernet + 1;

	if (l3 > data_end)
		return false;
	*drawn = (struct drawn){.is_ipv6 = ethernet->h_proto == bpf_htons(ETH_P_IPV6)};
	set_addresses(drawn, number);
	if (drawn->is_ipv6) {
		struct ipv6hdr *ip = l3;
		struct udphdr *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > data_end)
			return false;
		__builtin_memcpy(&ip->saddr, drawn->source, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, drawn->destination, sizeof(ip->daddr));
		ip->hop_limit = 255;
		write_ports(udp);
	} else {
		struct iphdr *ip = l3;
		struct udphdr *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > data_end)
			return false;
		ip->saddr = drawn->source[0];
		ip->daddr = drawn->destination[0];
		ip->ttl = 255;
		write_ports(udp);
	}
	return true;
}

static __always_inline __u32 draw_flow(void)
{
	return (__u64)bpf_get_prandom_u32() * FLOWS >> 32;
}

static __always_inline int tail_call(hook_ctx *ctx, __u32 slot)
{
	bpf_tail_call(ctx, &programs, slot);
	return HOOK_DROP;
}

HOOK_SECTION
int drawn_function(hook_ctx *ctx)
{
	struct drawn drawn;

	if (!rewrite_packet(ctx, &drawn, draw_flow()))
		return HOOK_DROP;
	return tail_call(ctx, SLOT_FUNCTION);
}

HOOK_SECTION
int drawn_look_up(hook_ctx *ctx)
{
	struct drawn drawn;

	if (!rewrite_packet(ctx, &drawn, draw_flow()) || !look_up(&drawn))
		return HOOK_DROP;
	return tail_call(ctx, SLOT_FORWARD);
}

HOOK_SECTION
int drawn_forward(hook_ctx *ctx)
{
	struct drawn drawn;

	if (!rewrite_packet(ctx, &drawn, draw_flow()))
		return HOOK_DROP;
	return tail_call(ctx, SLOT_FORWARD);
}

HOOK_SECTION
int hot_function(hook_ctx *ctx)
{
	struct drawn drawn;

	if (!rewrite_packet(ctx, &drawn, HOT))
		return HOOK_DROP;
	return tail_call(ctx, SLOT_FUNCTION);
}

HOOK_SECTION
int hot_forward(hook_ctx *ctx)
{
	struct drawn drawn;

	if (!rewrite_packet(ctx, &drawn, HOT))
		return HOOK_DROP;
	return tail_call(ctx, SLOT_FORWARD);
}

#endif
