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

#if defined(MYELIN_HOOK_XDP)

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

#endif

#endif
