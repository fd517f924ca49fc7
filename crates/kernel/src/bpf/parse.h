/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Finds the headers of a frame. Follows the rules of myelin_packet::parse exactly.
 */
#ifndef MYELIN_PARSE_H
#define MYELIN_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

#include "hook.h"

/* Reasons for an unparsed frame; same values as myelin_packet::Unparsed. */
enum unparsed {
	PARSED = 0,
	UNPARSED_NOT_IP = 1,
	UNPARSED_TRUNCATED = 2,
	UNPARSED_BAD_IP_HEADER = 3,
	UNPARSED_BAD_LENGTH = 4,
	UNPARSED_TOO_MANY_TAGS = 5,
	UNPARSED_TOO_MANY_EXTENSIONS = 6,
	/* Internal: a header is beyond the linear part of the skb. */
	PARSE_PULL = 7,
};

#define MAX_TAGS       2
#define MAX_EXTENSIONS 8

/* Set of the IPv6 extension headers that the parser walks. */
#define EXTENSIONS                                                                      \
	(1ULL << IPPROTO_HOPOPTS | 1ULL << IPPROTO_ROUTING | 1ULL << IPPROTO_FRAGMENT | \
	 1ULL << IPPROTO_AH | 1ULL << IPPROTO_DSTOPTS)

/*
 * The fields that the classifier compares, in network order. The fields are packed, so a masked key
 * is a few 64-bit words. Ports are 0 in a packet without ports. Same layouts as
 * myelin_kernel::classifier::{Key4, Key6}.
 */
struct fields {
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 mask;  /* number of the mask of this key */
	__u16 port; /* number of the ingress port */
};

struct key4 {
	__be32 source;
	__be32 destination;
	struct fields fields;
};

struct key6 {
	__u8 source[16];
	__u8 destination[16];
	struct fields fields;
};

union key {
	struct key4 v4;
	struct key6 v6;
	__u64 words[sizeof(struct key6) / sizeof(__u64)];
};

struct vlan_tag {
	__be16 tci;
	__be16 ethertype;
};

/* The smallest part of an extension header: next header, length, 6 more bytes. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 fragment; /* in a fragment header: offset and "more fragments" */
	__u8 rest[4];
};

struct packet {
	const void *data;
	const void *data_end;
	__u32 length; /* length of the frame; more than data_end - data in a non-linear skb */
	__u32 tags;   /* VLAN tags that the stack removed from the frame */
};

/* Returns the reason for which a parser cannot read `size` bytes at `offset`, beyond data_end. */
static __always_inline enum unparsed truncation_reason(const struct packet *packet, __u32 offset,
						       __u32 size)
{
#if defined(MYELIN_HOOK_TC)
	if (offset + size <= packet->length)
		return PARSE_PULL;
#endif
	return UNPARSED_TRUNCATED;
}

static __always_inline enum unparsed parse_ethernet(const struct packet *packet, __be16 *ethertype,
						    __u32 *l3)
{
	const struct ethhdr *ethernet = packet->data;
	__u32 at = sizeof(*ethernet), tags = packet->tags;

	if ((const void *)(ethernet + 1) > packet->data_end)
		return truncation_reason(packet, 0, sizeof(*ethernet));
	*ethertype = ethernet->h_proto;
#pragma unroll
	for (int i = 0; i <= MAX_TAGS; i++) {
		if (*ethertype != bpf_htons(ETH_P_8021Q) && *ethertype != bpf_htons(ETH_P_8021AD))
			break;
		if (tags >= MAX_TAGS)
			return UNPARSED_TOO_MANY_TAGS;

		const struct vlan_tag *tag = packet->data + at;

		if ((const void *)(tag + 1) > packet->data_end)
			return truncation_reason(packet, at, sizeof(*tag));
		*ethertype = tag->ethertype;
		at += sizeof(*tag);
		tags++;
	}
	*l3 = at;
	return PARSED;
}

/* Parses UDP and TCP: ports, start of the payload, end of the datagram. */
static __always_inline enum unparsed parse_transport(const struct packet *packet, __u32 l4,
						     __u32 *payload, __u32 *end,
						     struct headers *headers, struct fields *fields)
{
	*payload = l4;
	if (headers->protocol == IPPROTO_UDP) {
		const struct udphdr *udp = packet->data + l4;

		if (l4 + sizeof(*udp) > *end)
			return UNPARSED_TRUNCATED;
		if ((const void *)(udp + 1) > packet->data_end)
			return truncation_reason(packet, l4, sizeof(*udp));

		__u32 length = bpf_ntohs(udp->len);

		if (length < sizeof(*udp) || l4 + length > *end)
			return UNPARSED_BAD_LENGTH;
		fields->source_port = udp->source;
		fields->destination_port = udp->dest;
		*payload = l4 + sizeof(*udp);
		*end = l4 + length;
		headers->flags |= FLAG_PORTS;
	} else if (headers->protocol == IPPROTO_TCP) {
		const struct tcphdr *tcp = packet->data + l4;

		if (l4 + sizeof(*tcp) > *end)
			return UNPARSED_TRUNCATED;
		if ((const void *)(tcp + 1) > packet->data_end)
			return truncation_reason(packet, l4, sizeof(*tcp));

		__u32 length = tcp->doff * 4;

		if (length < sizeof(*tcp) || l4 + length > *end)
			return UNPARSED_BAD_LENGTH;
		fields->source_port = tcp->source;
		fields->destination_port = tcp->dest;
		*payload = l4 + length;
		headers->flags |= FLAG_PORTS;
	}
	return PARSED;
}

static __always_inline enum unparsed finish_headers(struct headers *headers, __u32 l3, __u32 l4,
						    __u32 payload, __u32 end)
{
	/* The metadata holds 16-bit offsets. */
	if (end > 0xffff)
		return UNPARSED_BAD_LENGTH;
	headers->l3 = l3;
	headers->l4 = l4;
	headers->payload = payload;
	headers->end = end;
	return PARSED;
}

static __always_inline enum unparsed parse_ipv4(const struct packet *packet, __u32 l3,
						struct headers *headers, struct key4 *key)
{
	const struct iphdr *ip = packet->data + l3;

	if ((const void *)(ip + 1) > packet->data_end)
		return truncation_reason(packet, l3, sizeof(*ip));

	__u32 header_length = ip->ihl * 4, total = bpf_ntohs(ip->tot_len);

	if (ip->version != 4 || header_length < sizeof(*ip))
		return UNPARSED_BAD_IP_HEADER;
	if (total < header_length || l3 + total > packet->length)
		return UNPARSED_BAD_LENGTH;

	__u32 l4 = l3 + header_length, end = l3 + total, payload = l4;

	headers->protocol = ip->protocol;
	key->source = ip->saddr;
	key->destination = ip->daddr;
	key->fields.protocol = ip->protocol;
	/* "More fragments" or an offset. */
	if (ip->frag_off & bpf_htons(0x3fff)) {
		headers->flags = FLAG_FRAGMENT;
	} else {
		headers->flags = 0;

		enum unparsed reason =
			parse_transport(packet, l4, &payload, &end, headers, &key->fields);

		if (reason)
			return reason;
	}
	return finish_headers(headers, l3, l4, payload, end);
}

/* Result of a walk over extension headers, in one number. */
#define WALK(reason, fragment, protocol, at) \
	((__u64)(reason) << 32 | (__u64)(fragment) << 24 | (__u64)(protocol) << 16 | (at))
#define WALK_REASON(walk)   ((__u32)((walk) >> 32))
#define WALK_FLAGS(walk)    ((walk) >> 24 & 1 ? FLAG_FRAGMENT : 0)
#define WALK_PROTOCOL(walk) ((__u8)((walk) >> 16))
#define WALK_AT(walk)	    ((__u16)(walk))

/* Returns whether the parser walks the extension header `next`. */
static __always_inline bool is_extension(__u32 next)
{
	return next < 64 && EXTENSIONS >> next & 1;
}

/*
 * Walks extension headers from `at`. `next` is the type of the first header. `end` is the end of
 * the IPv6 packet. This is a global function, because the verifier checks a global function only
 * once, and not once for each path through the loop and each caller.
 */
__noinline __u64 walk_extensions(hook_ctx *ctx, __u32 at, __u32 end, __u32 next)
{
	const struct packet packet = {
		.data = (void *)(long)ctx->data,
		.data_end = (void *)(long)ctx->data_end,
		.length = hook_length(ctx),
	};

	at &= MAX_OFFSET;
#pragma clang loop unroll(disable)
	for (int i = 0; i <= MAX_EXTENSIONS; i++) {
		if (!is_extension(next))
			break;
		if (i == MAX_EXTENSIONS)
			return WALK(UNPARSED_TOO_MANY_EXTENSIONS, 0, 0, 0);

		const struct extension *header = packet.data + at;

		if (at + sizeof(*header) > end)
			return WALK(UNPARSED_TRUNCATED, 0, 0, 0);
		if ((const void *)(header + 1) > packet.data_end)
			return WALK(truncation_reason(&packet, at, sizeof(*header)), 0, 0, 0);

		__u32 kind = next;

		next = header->next;
		if (kind == IPPROTO_FRAGMENT)
			at += sizeof(*header);
		else if (kind == IPPROTO_AH)
			at += (header->length + 2) * 4;
		else
			at += (header->length + 1) * 8;
		if (at > end)
			return WALK(UNPARSED_TRUNCATED, 0, 0, 0);
		/* No offset and no "more fragments": a whole packet (RFC 6946). */
		if (kind == IPPROTO_FRAGMENT && (header->fragment & bpf_htons(0xfff9)))
			return WALK(PARSED, 1, next, at);
	}
	return WALK(PARSED, 0, next, at);
}

static __always_inline enum unparsed parse_ipv6(hook_ctx *ctx, const struct packet *packet,
						__u32 l3, struct headers *headers, struct key6 *key)
{
	const struct ipv6hdr *ip = packet->data + l3;

	if ((const void *)(ip + 1) > packet->data_end)
		return truncation_reason(packet, l3, sizeof(*ip));
	if (ip->version != 6)
		return UNPARSED_BAD_IP_HEADER;

	__u32 length = bpf_ntohs(ip->payload_len), l4 = l3 + sizeof(*ip), end = l4 + length;

	/* Length 0 with a hop-by-hop header is a jumbogram (RFC 2675). */
	if (end > packet->length || (length == 0 && ip->nexthdr == IPPROTO_HOPOPTS))
		return UNPARSED_BAD_LENGTH;
	headers->flags = FLAG_IPV6;
	headers->protocol = ip->nexthdr;
	__builtin_memcpy(key->source, &ip->saddr, sizeof(key->source));
	__builtin_memcpy(key->destination, &ip->daddr, sizeof(key->destination));

	if (is_extension(ip->nexthdr)) {
		__u64 walk = walk_extensions(ctx, l4, end, ip->nexthdr);

		if (WALK_REASON(walk))
			return WALK_REASON(walk);
		headers->protocol = WALK_PROTOCOL(walk);
		headers->flags |= WALK_FLAGS(walk);
		l4 = WALK_AT(walk) & MAX_OFFSET;
	}
	key->fields.protocol = headers->protocol;

	__u32 payload = l4;

	if (!(headers->flags & FLAG_FRAGMENT)) {
		enum unparsed reason =
			parse_transport(packet, l4, &payload, &end, headers, &key->fields);

		if (reason)
			return reason;
	}
	return finish_headers(headers, l3, l4, payload, end);
}

/* Fills `headers` and `key`, which the caller sets to zero. */
static __always_inline enum unparsed parse(hook_ctx *ctx, struct headers *headers, union key *key)
{
	const struct packet packet = {
		.data = (void *)(long)ctx->data,
		.data_end = (void *)(long)ctx->data_end,
		.length = hook_length(ctx),
		.tags = hook_stripped_tags(ctx),
	};
	__be16 ethertype;
	__u32 l3;
	enum unparsed reason = parse_ethernet(&packet, &ethertype, &l3);

	if (reason)
		return reason;
	if (ethertype == bpf_htons(ETH_P_IP))
		return parse_ipv4(&packet, l3, headers, &key->v4);
	if (ethertype == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(ctx, &packet, l3, headers, &key->v6);
	return UNPARSED_NOT_IP;
}

#endif
