/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Finds and rewrites address and port of one end of a packet. Follows the rules of `endpoint.rs`
 * and `rewrite.rs` in myelin_functions::nat.
 */
#ifndef MYELIN_NAT_H
#define MYELIN_NAT_H

#include <linux/errno.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "protocol.h"

/* An ICMP or ICMPv6 echo; linux/icmp.h includes the C library's socket headers. */
struct echo {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 id;
	__be16 sequence;
};

enum {
	ECHO_REPLY = 0,
	ECHO_REQUEST = 8,
	ECHO_REQUEST_V6 = 128,
	ECHO_REPLY_V6 = 129,
};

/* Same fields as myelin_functions::nat::Endpoint, same layout as myelin_kernel::nat::Endpoint. */
struct endpoint {
	__u32 address[4]; /* network order; for IPv4 only the first word is not zero */
	__u16 port;	  /* host order; the identifier of an ICMP echo */
	__u8 protocol;
	__u8 is_ipv6;
};

_Static_assert(sizeof(struct endpoint) == 20, "no byte of a key may be undefined");

static __always_inline bool is_same_endpoint(const struct endpoint *a, const struct endpoint *b)
{
	return a->address[0] == b->address[0] && a->address[1] == b->address[1] &&
	       a->address[2] == b->address[2] && a->address[3] == b->address[3] &&
	       a->port == b->port && a->protocol == b->protocol && a->is_ipv6 == b->is_ipv6;
}

static __always_inline __u32 endpoint_mix(__u32 hash, __u32 word)
{
	hash ^= word;
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

static __always_inline __u32 endpoint_address_hash(const struct endpoint *endpoint)
{
	__u32 hash = 0x9e3779b9;

#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = endpoint_mix(hash, bpf_ntohl(endpoint->address[i]));
	return hash;
}

static __always_inline __u32 endpoint_hash(const struct endpoint *endpoint, __u32 address_hash)
{
	return endpoint_mix(address_hash, (__u32)endpoint->port << 16 |
						  (__u32)endpoint->protocol << 8 |
						  endpoint->is_ipv6);
}

/* A packet to translate. */
struct nat_packet {
	struct endpoint old; /* the endpoint before the translation */
	__u16 l3;
	__u16 l4;
	bool closes; /* a TCP segment with FIN or RST */
	bool opens;  /* a TCP segment with SYN, without FIN and RST */
	bool has_checksum;
	bool is_fragment; /* the first fragment of a datagram */
};

static __always_inline __u32 nat_fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/*
 * Returns whether the extension headers from `at` to `end` include an authentication header. `next`
 * is the type of the first header. An authentication header covers the addresses (RFC 4302, section
 * 3.3.3), so a receiver drops the packet after translation. This is a global function for the same
 * reason as walk_extensions.
 */
__noinline int is_authenticated(hook_ctx *ctx, __u32 at, __u32 end, __u32 next)
{
	const void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;

#pragma clang loop unroll(disable)
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (at >= end)
			return false;
		if (next == IPPROTO_AH)
			return true;

		const struct extension *header = data + (at & MAX_OFFSET);

		if ((const void *)(header + 1) > data_end)
			return true;
		at += next == IPPROTO_FRAGMENT ? sizeof(*header) : (header->length + 1) * 8;
		next = header->next;
	}
	return false;
}

/* Returns the offset field of a fragment; negative if the frame is too short. */
static __always_inline int fragment_offset(hook_ctx *ctx, const struct headers *headers)
{
	bool is_ipv6 = headers->flags & FLAG_IPV6;
	/* The parser stops behind the fragment header of IPv6. */
	__u32 at = is_ipv6 ? headers->l4 - 6 : headers->l3 + offsetof(struct iphdr, frag_off);
	const __be16 *field = (void *)(long)ctx->data + (at & MAX_OFFSET);

	if ((const void *)(field + 1) > (const void *)(long)ctx->data_end)
		return -1;
	return bpf_ntohs(*field) & (is_ipv6 ? 0xfff8 : 0x1fff);
}

/* Gives a first fragment the flags of a whole packet. Returns false for a later fragment, and for
 * one too short for the UDP header or TCP's fixed part. */
static __always_inline bool treat_first_as_whole(hook_ctx *ctx, struct headers *headers,
						 __u8 protocol)
{
	if (fragment_offset(ctx, headers) != 0)
		return false;
	headers->flags &= ~FLAG_FRAGMENT;
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP)
		return true;
	headers->flags |= FLAG_PORTS;
	return headers->l4 +
		       (protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr)) <=
	       headers->end;
}

/* Reads the source endpoint, or the destination endpoint on the reply side. Returns false for a
 * packet that a nat does not translate. */
static __always_inline bool nat_read(hook_ctx *ctx, bool reply, struct nat_packet *packet)
{
	struct headers headers;

	if (!hook_headers(ctx, &headers) ||
	    !hook_pull(ctx, headers.l4 + sizeof(struct tcphdr) < headers.end
				    ? headers.l4 + sizeof(struct tcphdr)
				    : headers.end) ||
	    !read_protocol(ctx, &headers, &packet->old.protocol))
		return false;
	packet->is_fragment = headers.flags & FLAG_FRAGMENT;
	if (packet->is_fragment && !treat_first_as_whole(ctx, &headers, packet->old.protocol))
		return false;

	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 l3 = headers.l3 & MAX_OFFSET, l4 = headers.l4 & MAX_OFFSET;
	void *segment = data + l4;

	packet->l3 = l3;
	packet->l4 = l4;
	if (headers.flags & FLAG_IPV6) {
		const struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(packet->old.address, reply ? &ip->daddr : &ip->saddr, 16);
		packet->old.is_ipv6 = 1;
		if (l4 != l3 + sizeof(*ip) &&
		    is_authenticated(ctx, l3 + sizeof(*ip), l4, ip->nexthdr))
			return false;
	} else {
		const struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return false;
		packet->old.address[0] = reply ? ip->daddr : ip->saddr;
	}
	packet->has_checksum = true;

	__u8 protocol = packet->old.protocol;

	if (headers.flags & FLAG_PORTS) {
		if (protocol == IPPROTO_UDP) {
			const struct udphdr *udp = segment;

			if ((void *)(udp + 1) > data_end)
				return false;
			packet->old.port = bpf_ntohs(reply ? udp->dest : udp->source);
			packet->has_checksum = udp->check;
			return true;
		}

		const struct tcphdr *tcp = segment;

		if ((void *)(tcp + 1) > data_end)
			return false;
		packet->old.port = bpf_ntohs(reply ? tcp->dest : tcp->source);
		packet->closes = tcp->fin || tcp->rst;
		packet->opens = tcp->syn && !packet->closes;
		return true;
	}
	const struct echo *icmp = segment;

	if (headers.l4 + sizeof(*icmp) > headers.end || (void *)(icmp + 1) > data_end)
		return false;
	packet->old.port = bpf_ntohs(icmp->id);
	if (packet->old.is_ipv6)
		return protocol == IPPROTO_ICMPV6 &&
		       icmp->type == (reply ? ECHO_REPLY_V6 : ECHO_REQUEST_V6);
	return protocol == IPPROTO_ICMP && icmp->type == (reply ? ECHO_REPLY : ECHO_REQUEST);
}

/* Growth of the sum for an unchanged field: 0 modulo 0xffff, as ones' complement counts. */
#define UNCHANGED (2 * 0xffff)

/* Returns the growth of an address's sum, in native order; never 0. */
static __always_inline __u32 address_growth(const struct endpoint *old, const struct endpoint *new)
{
	__u64 old_sum = 0, new_sum = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		old_sum += old->address[i];
		new_sum += new->address[i];
	}
	return nat_fold(new_sum) + UNCHANGED - nat_fold(old_sum);
}

static __always_inline __u16 adjusted_checksum(__u16 checksum, __u32 growth)
{
	return ~nat_fold((__u16)~checksum + (__u64)growth);
}

/* Replaces one 16-bit field. */
static __always_inline bool replace_field16(hook_ctx *ctx, __u32 offset, __u16 value)
{
	__u16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return false;
	*field = value;
	return true;
}

#if defined(MYELIN_HOOK_XDP)
/* Corrects the checksum at `offset` after addresses grew by `address` and other fields by `rest`.
 */
static __always_inline bool correct_l4_checksum(hook_ctx *ctx, __u32 offset, __u32 address,
						__u32 rest, const struct endpoint *new)
{
	__u16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return false;

	__u16 sum = adjusted_checksum(*field, address + rest);

	*field = new->protocol == IPPROTO_UDP && !sum ? 0xffff : sum;
	return true;
}

/* Corrects the NIC's sum of the packet (CHECKSUM_COMPLETE). An XDP frame has no such sum. */
static __always_inline void correct_nic_sum(hook_ctx *ctx, __u32 growth)
{
}
#else
/* Corrects the NIC's sum of the packet (CHECKSUM_COMPLETE), if the packet has such a sum. */
static __always_inline void correct_nic_sum(hook_ctx *ctx, __u32 growth)
{
	bpf_csum_update(ctx, growth);
}

static __always_inline bool correct_l4_checksum(hook_ctx *ctx, __u32 offset, __u32 address,
						__u32 rest, const struct endpoint *new)
{
	__u64 mangled = new->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	if (address) {
		/* A checksum that the NIC will complete (CHECKSUM_PARTIAL) covers only the
		 * addresses. */
		if (bpf_l4_csum_replace(ctx, offset, 0, address, mangled | BPF_F_PSEUDO_HDR))
			return false;
		/* The helper assumes that the IP header's checksum compensates the addresses. */
		if (new->is_ipv6)
			correct_nic_sum(ctx, address);
		if (rest == UNCHANGED)
			return true;
	}
	return bpf_l4_csum_replace(ctx, offset, 0, rest, mangled) == 0;
}
#endif

/* Replaces the packet's old endpoint by `new` and corrects the checksums (RFC 1624). */
static __always_inline bool nat_write(hook_ctx *ctx, bool reply, const struct nat_packet *packet,
				      const struct endpoint *new)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 l3 = packet->l3 & MAX_OFFSET, l4 = packet->l4;
	__u32 address = address_growth(&packet->old, new);
	__u32 port = bpf_htons(new->port) + UNCHANGED - bpf_htons(packet->old.port);
	__u8 protocol = packet->old.protocol;

	if (packet->old.is_ipv6) {
		struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(reply ? &ip->daddr : &ip->saddr, new->address, 16);
	} else {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return false;
		if (reply)
			ip->daddr = new->address[0];
		else
			ip->saddr = new->address[0];
		/* Header and checksum together add nothing to a sum over the whole packet. */
		ip->check = adjusted_checksum(ip->check, address);
	}

	__be16 value = bpf_htons(new->port);

	switch (protocol) {
	case IPPROTO_UDP:
		if (!replace_field16(ctx, l4 + (reply ? 2 : 0), value))
			return false;
		if (packet->has_checksum)
			return correct_l4_checksum(ctx, l4 + offsetof(struct udphdr, check),
						   address, port, new);
		correct_nic_sum(ctx, new->is_ipv6 ? address + port : port);
		return true;
	case IPPROTO_TCP:
		return replace_field16(ctx, l4 + (reply ? 2 : 0), value) &&
		       correct_l4_checksum(ctx, l4 + offsetof(struct tcphdr, check), address, port,
					   new);
	case IPPROTO_ICMP:
		/* The ICMP checksum covers no addresses. */
		address = 0;
		break;
	}
	return replace_field16(ctx, l4 + offsetof(struct echo, id), value) &&
	       correct_l4_checksum(ctx, l4 + offsetof(struct echo, checksum), address, port, new);
}

#endif
