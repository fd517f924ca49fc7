/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Translates an ICMP error: the quoted packet, and the error's own address on the same side.
 * Follows the rules of myelin_functions::nat::quoted. Both checksums of the error change such that
 * the sum over the whole packet stays. So an skb's sum from the NIC (CHECKSUM_COMPLETE) stays too.
 */
#ifndef MYELIN_NAT_ERROR_H
#define MYELIN_NAT_ERROR_H

#include "icmp_quote.h"
#include "nat.h"

/* Offsets of the fields that a side translates. */
struct quoted_endpoint {
	struct icmp_quote quote;
	__u32 outer_address; /* the error's own source, or its destination on the reply side */
	__u32 address;	     /* the quoted destination, or the quoted source on the reply side */
	__u32 port;
	struct endpoint old;
};

/* Finds and reads the fields of an ICMP error. Returns false for a quote that breaks a rule, and
 * for a quoted packet that the function never sends. */
static __always_inline bool find_quoted_endpoint(hook_ctx *ctx, bool reply,
						 struct quoted_endpoint *fields)
{
	struct icmp_quote *quote = &fields->quote;

	if (!find_quoted_packet(ctx, quote))
		return false;

	bool is_ipv6 = quote->is_ipv6;

	fields->address = reply ? quoted_source(quote) : quoted_destination(quote);
	if (is_ipv6) {
		const struct ipv6hdr *ip = (void *)(long)ctx->data + (quote->outer_l3 & MAX_OFFSET);
		__u32 at = quote->outer_l3 + sizeof(*ip);

		if ((const void *)(ip + 1) > (const void *)(long)ctx->data_end ||
		    (quote->message != at &&
		     is_authenticated(ctx, at, quote->message, ip->nexthdr)))
			return false;
		fields->outer_address = quote->outer_l3 + (reply ? offsetof(struct ipv6hdr, daddr)
								 : offsetof(struct ipv6hdr, saddr));
	} else {
		fields->outer_address = quote->outer_l3 + (reply ? offsetof(struct iphdr, daddr)
								 : offsetof(struct iphdr, saddr));
	}
	if (quote_has_ports(quote)) {
		fields->port = quote->l4 + (reply ? 0 : 2);
	} else {
		const struct echo *echo = (void *)(long)ctx->data + (quote->l4 & MAX_OFFSET);
		__u8 expected = is_ipv6 ? (reply ? ECHO_REQUEST_V6 : ECHO_REPLY_V6)
					: (reply ? ECHO_REQUEST : ECHO_REPLY);

		if (quote->protocol != (is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) ||
		    (const void *)(echo + 1) > (const void *)(long)ctx->data_end ||
		    echo->type != expected)
			return false;
		fields->port = quote->l4 + offsetof(struct echo, id);
	}

	__u16 port;

	if (!read_field16(ctx, fields->port, &port) ||
	    !read_address(ctx, fields->address, is_ipv6, fields->old.address))
		return false;
	fields->old.port = bpf_ntohs(port);
	fields->old.protocol = quote->protocol;
	fields->old.is_ipv6 = is_ipv6;
	return true;
}

static __always_inline bool write_address(hook_ctx *ctx, __u32 offset, const struct endpoint *new)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u32 *words = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if (!new->is_ipv6) {
		if ((void *)(words + 1) > data_end)
			return false;
		words[0] = new->address[0];
		return true;
	}
	if ((void *)(words + 4) > data_end)
		return false;
	__builtin_memcpy(words, new->address, 16);
	return true;
}

/* Corrects the checksum at `offset` after the sum of its words grew by `growth`. Adds the growth of
 * a sum that covers the checksum to `message`. */
static __always_inline bool correct_checksum(hook_ctx *ctx, __u32 offset, __u32 growth, bool is_udp,
					     __u32 *message)
{
	__u16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return false;

	__u16 old = *field, new = adjusted_checksum(old, growth);

	if (is_udp && !new)
		new = 0xffff;
	*field = new;
	*message += new + UNCHANGED - old;
	return true;
}

/* Corrects the transport checksum in the quote, if the quote has one. */
static __always_inline bool correct_quoted_checksum(hook_ctx *ctx, const struct icmp_quote *quote,
						    __u32 address, __u32 port, __u32 *message)
{
	bool is_udp = quote->protocol == IPPROTO_UDP;
	__u32 at = quote->l4;
	__u16 present;

	if (is_udp)
		at += offsetof(struct udphdr, check);
	else if (quote->protocol == IPPROTO_TCP)
		at += offsetof(struct tcphdr, check);
	else
		at += offsetof(struct echo, checksum);
	if (at + sizeof(present) > quote->end)
		return true;
	if (!read_field16(ctx, at, &present))
		return false;
	if (is_udp && !present)
		return true;
	/* The ICMP checksum covers no addresses. */
	return correct_checksum(ctx, at, quote->protocol == IPPROTO_ICMP ? port : address + port,
				is_udp, message);
}

/* Replaces the quoted endpoint and the error's own address by `new`, and corrects all checksums. */
static __always_inline bool write_quoted_endpoint(hook_ctx *ctx,
						  const struct quoted_endpoint *fields,
						  const struct endpoint *new)
{
	const struct icmp_quote *quote = &fields->quote;
	struct endpoint outer = {};

	if (!read_address(ctx, fields->outer_address, new->is_ipv6, outer.address))
		return false;

	__u32 outer_growth = address_growth(&outer, new);
	__u32 address = address_growth(&fields->old, new);
	__u32 port = bpf_htons(new->port) + UNCHANGED - bpf_htons(fields->old.port);
	__u32 unused = 0, message = address + port; /* growth of the sum over the ICMP message */

	if (!write_address(ctx, fields->outer_address, new) ||
	    !write_address(ctx, fields->address, new) ||
	    !replace_field16(ctx, fields->port, bpf_htons(new->port)))
		return false;
	if (new->is_ipv6)
		message += outer_growth;
	else if (!correct_checksum(ctx, quote->outer_l3 + offsetof(struct iphdr, check),
				   outer_growth, false, &unused) ||
		 !correct_checksum(ctx, quote->l3 + offsetof(struct iphdr, check), address, false,
				   &message))
		return false;
	return correct_quoted_checksum(ctx, quote, address, port, &message) &&
	       correct_checksum(ctx, quote->message + offsetof(struct echo, checksum), message,
				false, &unused);
}

#endif
