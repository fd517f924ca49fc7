/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Finds the packet that an ICMP or ICMPv6 error quotes. Follows the rules of
 * myelin_packet::icmp_quote exactly.
 */
#ifndef MYELIN_ICMP_QUOTE_H
#define MYELIN_ICMP_QUOTE_H

#include "protocol.h"

/* The start of an ICMP or ICMPv6 message; linux/icmp.h includes the C library's socket headers. */
struct icmp_start {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__u32 rest;
};

/* Types 3, 4, 11 and 12 of ICMP; types 1 to 4 of ICMPv6. */
#define ICMP_ERRORS    (1U << 3 | 1U << 4 | 1U << 11 | 1U << 12)
#define ICMP_ERRORS_V6 (1U << 1 | 1U << 2 | 1U << 3 | 1U << 4)

/* The bytes behind the IP header that a quote must have. */
#define QUOTED_L4_MIN 8

/* The packet in an ICMP error. All numbers are offsets in the frame. */
struct icmp_quote {
	__u16 outer_l3; /* the IP header of the error */
	__u16 message;	/* the ICMP header */
	__u16 l3;	/* the quoted IP header */
	__u16 l4;	/* the header behind the quoted IP header; at least eight bytes exist */
	__u16 end;	/* the end of the quote; the quoted packet may be longer */
	__u8 protocol;	/* of the quoted packet */
	bool is_ipv6;
};

static __always_inline __u32 quoted_source(const struct icmp_quote *quote)
{
	return quote->l3 +
	       (quote->is_ipv6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));
}

static __always_inline __u32 quoted_destination(const struct icmp_quote *quote)
{
	return quote->l3 +
	       (quote->is_ipv6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr));
}

static __always_inline bool quote_has_ports(const struct icmp_quote *quote)
{
	return quote->protocol == IPPROTO_UDP || quote->protocol == IPPROTO_TCP;
}

/* Reads an address of the family at `offset`; for IPv4 into the first word. */
static __always_inline bool read_address(const hook_ctx *ctx, __u32 offset, bool is_ipv6,
					 __u32 *address)
{
	const void *data_end = (void *)(long)ctx->data_end;
	const __u32 *words = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if (!is_ipv6) {
		if ((const void *)(words + 1) > data_end)
			return false;
		address[0] = words[0];
		return true;
	}
	if ((const void *)(words + 4) > data_end)
		return false;
	__builtin_memcpy(address, words, 16);
	return true;
}

static __always_inline bool read_field16(const hook_ctx *ctx, __u32 offset, __u16 *value)
{
	const __u16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((const void *)(field + 1) > (const void *)(long)ctx->data_end)
		return false;
	*value = *field;
	return true;
}

/* Finds the end of the quoted IP header, and the protocol behind it. */
static __always_inline bool skip_quoted_ip(hook_ctx *ctx, struct icmp_quote *quote)
{
	const void *data_end = (void *)(long)ctx->data_end;
	const void *l3 = (void *)(long)ctx->data + (quote->l3 & MAX_OFFSET);

	if (!quote->is_ipv6) {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5 ||
		    ip->frag_off & bpf_htons(0x1fff))
			return false;
		quote->protocol = ip->protocol;
		quote->l4 = quote->l3 + ip->ihl * 4;
		return true;
	}

	const struct ipv6hdr *ip = l3;
	__u32 at = quote->l3 + sizeof(*ip);

	if ((const void *)(ip + 1) > data_end || ip->version != 6)
		return false;
	quote->protocol = ip->nexthdr;
	if (is_extension(ip->nexthdr)) {
		__u64 walk = walk_extensions(ctx, at, quote->end, ip->nexthdr);
		__be16 fragment;

		if (WALK_REASON(walk))
			return false;
		at = WALK_AT(walk);
		quote->protocol = WALK_PROTOCOL(walk);
		/* A fragment header is the last that the walk skips. */
		if (WALK_FLAGS(walk) && (!read_field16(ctx,
						       at - sizeof(struct extension) +
							       offsetof(struct extension, fragment),
						       &fragment) ||
					 fragment & bpf_htons(0xfff8)))
			return false;
	}
	quote->l4 = at;
	return true;
}

/* Returns whether a quote may contain this protocol, with this first byte. Only an echo may be
 * quoted, so no error quotes an error. */
static __always_inline bool is_quotable(__u8 protocol, __u8 first)
{
	if (protocol == IPPROTO_ICMP)
		return first == 0 || first == 8;
	if (protocol == IPPROTO_ICMPV6)
		return first == 128 || first == 129;
	return true;
}

/* Returns whether the error goes to the source of the quoted packet. */
static __always_inline bool is_told_to_sender(const hook_ctx *ctx, const struct icmp_quote *quote)
{
	__u32 told[4] = {}, source[4] = {};
	__u32 destination =
		quote->is_ipv6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr);

	return read_address(ctx, quote->outer_l3 + destination, quote->is_ipv6, told) &&
	       read_address(ctx, quoted_source(quote), quote->is_ipv6, source) &&
	       told[0] == source[0] && told[1] == source[1] && told[2] == source[2] &&
	       told[3] == source[3];
}

/* Returns whether a packet is an ICMP error. Fills all of `quote` but the quoted header. */
static __always_inline bool find_icmp_error(hook_ctx *ctx, struct icmp_quote *quote)
{
	struct headers headers;
	__u8 protocol;

	/* The quote must be in the linear part of the skb. */
	if (!hook_headers(ctx, &headers) || headers.flags & (FLAG_FRAGMENT | FLAG_PORTS) ||
	    !hook_pull(ctx, headers.end) || !read_protocol(ctx, &headers, &protocol))
		return false;
	quote->is_ipv6 = headers.flags & FLAG_IPV6;
	quote->outer_l3 = headers.l3;
	quote->message = headers.l4;
	quote->l3 = headers.l4 + sizeof(struct icmp_start);
	quote->end = headers.end;
	if (protocol != (quote->is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return false;

	const struct icmp_start *icmp = (void *)(long)ctx->data + (quote->message & MAX_OFFSET);

	return quote->message + sizeof(*icmp) <= quote->end &&
	       (const void *)(icmp + 1) <= (const void *)(long)ctx->data_end && icmp->type < 32 &&
	       (quote->is_ipv6 ? ICMP_ERRORS_V6 : ICMP_ERRORS) >> icmp->type & 1;
}

/* Finds the quote of an ICMP error. Returns false for a quote that breaks a rule. */
static __always_inline bool find_quoted_packet(hook_ctx *ctx, struct icmp_quote *quote)
{
	if (!skip_quoted_ip(ctx, quote) || quote->l4 + QUOTED_L4_MIN > quote->end)
		return false;

	const __u8 *first = (void *)(long)ctx->data + (quote->l4 & MAX_OFFSET);

	return (const void *)(first + QUOTED_L4_MIN) <= (const void *)(long)ctx->data_end &&
	       is_quotable(quote->protocol, *first) && is_told_to_sender(ctx, quote);
}

#endif
