/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A packet between two nodes: Ethernet and NSH (RFC 8300) in front of the packet's own frame. In a
 * tunnel, a VXLAN header (RFC 7348) is in front of that. The NSH context carries the stamp, and the
 * kernel whose clock took the stamp. myelin_packet::wire has the formats.
 */
#ifndef MYELIN_WIRE_H
#define MYELIN_WIRE_H

#include "nsh.h"
#include "relay.h"

#define VXLAN_PORT  4789
#define VXLAN_FLAGS 0x08000000u /* the identifier is valid */

struct vxlan {
	struct udphdr udp;
	__be32 flags;
	__be32 vni; /* identifier << 8 */
} __attribute__((packed));

struct tunnel4 {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct vxlan vxlan;
} __attribute__((packed));

struct tunnel6 {
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct vxlan vxlan;
} __attribute__((packed));

_Static_assert(sizeof(struct tunnel4) == 50 && sizeof(struct tunnel6) == 70, "RFC 7348");

#define LONGEST_WIRE_HEADER (sizeof(struct tunnel6) + sizeof(struct encapsulation))

/*
 * Over an exit link, the stamp is in NSH (from XDP and from a worker), or in three service tags
 * (from tc, where an skb may be a super-packet). A packet of a chain has at most two tags, and
 * never NSH.
 */
struct stamp_tags {
	__u32 addresses[MAC_WORDS];
	struct relay_tags tags;
	__be16 type_last;
	__be16 last;
} __attribute__((packed));

#define STAMP_TAGS_LEN (sizeof(struct stamp_tags) - MAC_WORDS * sizeof(__u32))

#if defined(MYELIN_HOOK_XDP)

/* Puts the stamp in front of a packet, for an exit link. */
static __always_inline bool put_stamp_in_front(hook_ctx *ctx, __u64 stamp_ns)
{
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct encapsulation)))
		return false;

	struct encapsulation *nsh = (void *)(long)ctx->data;

	if ((void *)(nsh + 1) > (void *)(long)ctx->data_end)
		return false;
	nsh->ethernet.h_proto = bpf_htons(ETH_P_NSH);
	nsh->base = bpf_htonl(NSH_BASE | NSH_TTL_MASK);
	nsh->stamp_high = bpf_htonl(stamp_ns >> 32);
	nsh->stamp_low = bpf_htonl(stamp_ns);
	return true;
}

/* Removes what carries the stamp over an exit link. A packet without a stamp leaves `stamp_ns`
 * unchanged. Returns false if the stamp stays in the packet. */
static __always_inline bool take_stamp(hook_ctx *ctx, __u64 *stamp_ns)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const struct encapsulation *nsh = data;
	struct stamp_tags *tagged = data;

	if ((const void *)(nsh + 1) <= data_end && nsh->ethernet.h_proto == bpf_htons(ETH_P_NSH)) {
		*stamp_ns = (__u64)bpf_ntohl(nsh->stamp_high) << 32 | bpf_ntohl(nsh->stamp_low);
		return bpf_xdp_adjust_head(ctx, sizeof(*nsh)) == 0;
	}
	if ((void *)(tagged + 1) > data_end || tagged->tags.type_high != RELAY_TYPE ||
	    tagged->tags.type_low != RELAY_TYPE || tagged->type_last != RELAY_TYPE)
		return true;
	*stamp_ns = restore_stamp(bpf_ntohs(tagged->tags.high), bpf_ntohs(tagged->tags.low));

	__u32 *moved = data + STAMP_TAGS_LEN;

	for (int i = MAC_WORDS - 1; i >= 0; i--)
		moved[i] = tagged->addresses[i];
	return bpf_xdp_adjust_head(ctx, STAMP_TAGS_LEN) == 0;
}

/*
 * Removes the headers of a frame that wire_in.bpf.c has checked. Returns the stamp, and the tags
 * that carry it to tc. A stamp of another kernel's clock, or of the future, is replaced by the
 * time of arrival.
 */
static __always_inline bool remove_wire_header(hook_ctx *ctx, __u32 kernel, struct relay_tags *tags,
					       __u64 *stamp_ns)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const struct ethhdr *outer = data;
	__u32 tunnel = 0;

	if ((const void *)(outer + 1) > data_end)
		return false;
	if (outer->h_proto == bpf_htons(ETH_P_IP))
		tunnel = sizeof(struct tunnel4);
	else if (outer->h_proto == bpf_htons(ETH_P_IPV6))
		tunnel = sizeof(struct tunnel6);

	const struct encapsulation *nsh = data + tunnel;

	if ((const void *)(nsh + 1) > data_end || nsh->ethernet.h_proto != bpf_htons(ETH_P_NSH))
		return false;

	__u64 now_ns = bpf_ktime_get_ns();
	__u64 stamp = (__u64)bpf_ntohl(nsh->stamp_high) << 32 | bpf_ntohl(nsh->stamp_low);

	*stamp_ns = kernel && nsh->kernel == bpf_htonl(kernel) && stamp <= now_ns ? stamp : now_ns;
	tags->type_high = tags->type_low = RELAY_TYPE;
	tags->high = bpf_htons(*stamp_ns >> 16);
	tags->low = bpf_htons(*stamp_ns);
	return bpf_xdp_adjust_head(ctx, tunnel + sizeof(*nsh)) == 0;
}

#else

/* Puts the stamp in front of a packet, for an exit link. */
static __always_inline bool put_stamp_in_front(hook_ctx *ctx, __u64 stamp_ns)
{
	return !bpf_skb_vlan_push(ctx, RELAY_TYPE, 0) &&
	       !bpf_skb_vlan_push(ctx, RELAY_TYPE, stamp_ns & 0xffff) &&
	       !bpf_skb_vlan_push(ctx, RELAY_TYPE, stamp_ns >> 16 & 0xffff);
}

#endif

#endif
