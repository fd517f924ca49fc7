// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Appends the times at which this function received and forwards the packet to the UDP payload,
 * and corrects lengths and checksums: the ATS of CALVIN.
 *
 * Drops a packet that cannot grow: a packet without UDP, a fragment, a GSO skb, a packet that would
 * exceed the MTU or the buffer, a packet with data after the datagram (RFC 9868). Overwrites the
 * Ethernet padding before the frame grows. All sums are in native byte order (RFC 1071, section
 * 2B).
 */
#include <linux/udp.h>

#include "grow.h"
#include "protocol.h"
#include "next.h"

/* Same value as in myelin_functions::timestamp. */
#define MTU 1500

const volatile struct {
	struct hop hop;
} INSTANCE INSTANCE_SECTION;

struct stamps {
	__be64 received_ns;
	__be64 sent_ns;
};

_Static_assert(sizeof(struct stamps) == 16, "the layout is shared with user space");

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* Returns the sum that the stamps add to a datagram of `length` bytes. After an odd length the
 * first byte is the other half of its word. */
static __always_inline __u16 stamps_sum(const struct stamps *stamps, __u32 length)
{
	__u16 sum = fold((stamps->received_ns >> 32) + (__u32)stamps->received_ns +
			 (stamps->sent_ns >> 32) + (__u32)stamps->sent_ns);

	return length & 1 ? __builtin_bswap16(sum) : sum;
}

/* Returns the length field of the IP header; NULL if the field is missing. Writes the offset from
 * which the field counts to `from`. */
static __always_inline __be16 *ip_length(hook_ctx *ctx, const struct headers *headers, __u32 *from)
{
	void *l3 = (void *)(long)ctx->data + (headers->l3 & MAX_OFFSET);

	if (headers->flags & FLAG_IPV6) {
		struct ipv6hdr *ip = l3;

		*from = headers->l3 + sizeof(*ip);
		return (void *)(ip + 1) > (void *)(long)ctx->data_end ? NULL : &ip->payload_len;
	}

	struct iphdr *ip = l3;

	*from = headers->l3;
	return (void *)(ip + 1) > (void *)(long)ctx->data_end ? NULL : &ip->tot_len;
}

static __always_inline bool lengthen_ip(hook_ctx *ctx, const struct headers *headers)
{
	__u32 from;
	__be16 *length = ip_length(ctx, headers, &from);

	if (!length)
		return false;

	__be16 shorter = *length, longer = bpf_htons(bpf_ntohs(shorter) + sizeof(struct stamps));

	*length = longer;
	if (!(headers->flags & FLAG_IPV6)) {
		struct iphdr *ip = (void *)length - offsetof(struct iphdr, tot_len);

		/* RFC 1624, equation 3. */
		ip->check = ~fold((__u64)(__u16)~ip->check + (__u16)~shorter + longer);
	}
	return true;
}

/* Corrects the UDP header after the datagram grew by 16 bytes with sum `sum`. The pseudo-header
 * also contains the length. */
static __always_inline bool lengthen_udp(hook_ctx *ctx, const struct headers *headers, __u16 sum)
{
	struct udphdr *udp = (void *)(long)ctx->data + (headers->l4 & MAX_OFFSET);
	const __u16 growth = bpf_htons(sizeof(struct stamps));

	if ((void *)(udp + 1) > (void *)(long)ctx->data_end)
		return false;
	udp->len = bpf_htons(bpf_ntohs(udp->len) + sizeof(struct stamps));
	/* The datagram has no checksum. */
	if (!udp->check)
		return true;
#if defined(MYELIN_HOOK_XDP)
	__u16 check = ~fold((__u64)(__u16)~udp->check + sum + 2 * (__u32)growth);

	udp->check = check ? check : 0xffff;
	return true;
#else
	__u32 field = headers->l4 + offsetof(struct udphdr, check);

	/* If the NIC completes the checksum (CHECKSUM_PARTIAL), the field holds the sum of the
	 * pseudo-header only. */
	return bpf_l4_csum_replace(ctx, field, 0, (__u32)sum + growth, BPF_F_MARK_MANGLED_0) == 0 &&
	       bpf_l4_csum_replace(ctx, field, 0, growth,
				   BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0) == 0;
#endif
}

static __always_inline bool append_stamps(hook_ctx *ctx)
{
	struct headers headers;
	struct stamps stamps = {.received_ns = bpf_cpu_to_be64(bpf_ktime_get_ns())};
	__u8 protocol;

	if (!hook_headers(ctx, &headers) || !(headers.flags & FLAG_PORTS))
		return false;
#if defined(MYELIN_HOOK_TC)
	if (ctx->gso_segs > 1 || ctx->gso_size)
		return false;
#endif

	__u32 end = headers.end, new_end = end + sizeof(stamps), length = hook_length(ctx);

	if (new_end - headers.l3 > MTU || headers.end < headers.l4 || !hook_pull(ctx, end) ||
	    !read_protocol(ctx, &headers, &protocol) || protocol != IPPROTO_UDP)
		return false;

	__u32 from;
	const __be16 *ip = ip_length(ctx, &headers, &from);

	if (!ip || from + bpf_ntohs(*ip) != end)
		return false;
	if (new_end > length && !hook_grow(ctx, length, new_end - length))
		return false;
	if (!hook_pull(ctx, new_end))
		return false;

	struct stamps *tail = (void *)(long)ctx->data + (end & MAX_OFFSET);

	if ((void *)(tail + 1) > (void *)(long)ctx->data_end)
		return false;
	stamps.sent_ns = bpf_cpu_to_be64(bpf_ktime_get_ns());
	*tail = stamps;
	return lengthen_ip(ctx, &headers) &&
	       lengthen_udp(ctx, &headers, stamps_sum(&stamps, end - headers.l4)) &&
	       hook_set_end(ctx, new_end);
}

HOOK_SECTION
int myelin_timestamp(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);

	if (!append_stamps(ctx))
		return hop_drop(ctx, line);
	hop_leave(line, entered);
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
