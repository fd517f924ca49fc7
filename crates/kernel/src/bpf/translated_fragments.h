/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Translates later fragments like their first fragment, which alone has the ports. Follows the
 * rules of myelin_functions::translated_fragments.
 */
#ifndef MYELIN_TRANSLATED_FRAGMENTS_H
#define MYELIN_TRANSLATED_FRAGMENTS_H

#include "icmp_quote.h"
#include "nat.h"

#define TRANSLATION_LIFETIME_NS 30000000000ULL

/* The datagram of a fragment before the translation. */
struct translated_datagram {
	__u32 source[4];
	__u32 destination[4];
	__be32 identification;
	__u16 padding;
	__u8 protocol;
	__u8 is_ipv6;
};

_Static_assert(sizeof(struct translated_datagram) == 40, "no byte of a key may be undefined");

/* The translation of a datagram. */
struct translation {
	__u64 seen_ns;
	__u32 address[4];
	__u8 mac[6];
	__u8 has_mac;
	__u8 padding;
};

/* Both sides share the map. The loader sets the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct translated_datagram);
	__type(value, struct translation);
	__uint(max_entries, 1);
} translations SEC(".maps");

/* Reads the datagram of a fragment. Returns false if the frame is too short. */
static __always_inline bool read_translated_datagram(hook_ctx *ctx, const struct headers *headers,
						     struct translated_datagram *datagram)
{
	bool is_ipv6 = headers->flags & FLAG_IPV6;
	__u32 source = headers->l3 +
		       (is_ipv6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));
	__u16 high = 0, low = 0;

	datagram->is_ipv6 = is_ipv6;
	/* The parser stops behind the fragment header of IPv6. */
	if (!(is_ipv6 ? read_field16(ctx, headers->l4 - 4, &high) &&
				read_field16(ctx, headers->l4 - 2, &low)
		      : read_field16(ctx, headers->l3 + offsetof(struct iphdr, id), &low)))
		return false;
	datagram->identification = (__u32)high << 16 | low;
	return read_protocol(ctx, headers, &datagram->protocol) &&
	       read_address(ctx, source, is_ipv6, datagram->source) &&
	       read_address(ctx, source + (is_ipv6 ? 16 : 4), is_ipv6, datagram->destination);
}

/* Remembers the translation of a first fragment, which has the new address. `mac` is the new MAC
 * address, or NULL. */
static __noinline bool remember_translation(hook_ctx *ctx, bool reply, const struct endpoint *old,
					    const __u8 *mac)
{
	struct translated_datagram datagram = {};
	struct translation translation = {};
	struct headers headers;

	if (!old || !hook_stamp(ctx, &translation.seen_ns) || !hook_headers(ctx, &headers) ||
	    !read_translated_datagram(ctx, &headers, &datagram))
		return false;

	__u32 *address = reply ? datagram.destination : datagram.source;

	__builtin_memcpy(translation.address, address, sizeof(translation.address));
	__builtin_memcpy(address, old->address, sizeof(old->address));
	if (mac) {
		__builtin_memcpy(translation.mac, mac, sizeof(translation.mac));
		translation.has_mac = 1;
	}
	/* If the map is full, the later fragments are dropped. */
	bpf_map_update_elem(&translations, &datagram, &translation, BPF_ANY);
	return true;
}

/* Replaces the address that a side translates. Only the checksum of an IPv4 header covers it in a
 * later fragment. */
static __always_inline bool replace_address(hook_ctx *ctx, bool reply,
					    const struct headers *headers,
					    const struct endpoint *old, const struct endpoint *new)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	void *l3 = data + (headers->l3 & MAX_OFFSET);
	__u32 growth = address_growth(old, new);

	if (headers->flags & FLAG_IPV6) {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return false;
		__builtin_memcpy(reply ? &ip->daddr : &ip->saddr, new->address, 16);
		correct_nic_sum(ctx, growth);
		return true;
	}

	struct iphdr *ip = l3;

	if ((void *)(ip + 1) > data_end)
		return false;
	if (reply)
		ip->daddr = new->address[0];
	else
		ip->saddr = new->address[0];
	ip->check = adjusted_checksum(ip->check, growth);
	return true;
}

/* Returns whether the packet is a fragment. */
static __always_inline bool is_fragment(hook_ctx *ctx)
{
	struct headers headers;

	return hook_headers(ctx, &headers) && headers.flags & FLAG_FRAGMENT;
}

/* Translates a later fragment of a datagram whose first fragment was translated. */
static __noinline bool translate_later_fragment(hook_ctx *ctx, bool reply)
{
	struct translated_datagram datagram = {};
	struct endpoint old = {}, new = {};
	struct headers headers;
	__u64 now;

	if (!hook_stamp(ctx, &now) || !hook_headers(ctx, &headers) || !hook_pull(ctx, headers.l4) ||
	    fragment_offset(ctx, &headers) <= 0 ||
	    !read_translated_datagram(ctx, &headers, &datagram))
		return false;

	const struct translation *found = bpf_map_lookup_elem(&translations, &datagram);

	if (!found || (now > found->seen_ns && now - found->seen_ns > TRANSLATION_LIFETIME_NS))
		return false;
	__builtin_memcpy(old.address, reply ? datagram.destination : datagram.source,
			 sizeof(old.address));
	__builtin_memcpy(new.address, found->address, sizeof(new.address));
	if (!replace_address(ctx, reply, &headers, &old, &new))
		return false;
	if (!found->has_mac)
		return true;

	void *data = (void *)(long)ctx->data;

	if (data + sizeof(found->mac) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(data, found->mac, sizeof(found->mac));
	return true;
}

#endif
