// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Sends the packets of a part to the next node. Runs at the far end of the part's exit link, an
 * internal veth without offloads, so each packet is of wire size and has its checksums and tags.
 * The XDP program puts the headers in front of the packet and passes it to the tc program, which
 * transmits it at the interface that leads to the neighbour.
 */
#include "wire.h"
#include "counters.h"

/* Counter lines of an exit; same order as in myelin_kernel::wire. */
enum exit_line {
	EXIT_SENT = 0,
	EXIT_TOO_LONG = 1,   /* with its headers, longer than the interface or the page allows */
	EXIT_UNRESOLVED = 2, /* the neighbour's Ethernet address is unknown */
};

/* Same layout as myelin_kernel::wire::WireOutInstance. */
const volatile struct wire_out {
	struct counting counting;
	__u32 line;    /* the exit's first counter line */
	__u32 ifindex; /* the interface that leads to the neighbour */
	__u32 header;  /* bytes in front of the packet */
	__u32 longest; /* longest frame of the interface, bytes */
	__u32 ttl;     /* number of the cell in `ttls` */
	__u32 kernel;  /* whose clock takes the stamps */
} INSTANCE INSTANCE_SECTION;

#if defined(MYELIN_HOOK_XDP)

/* The headers as user space wrote them. Lengths, checksum, source port, time to live and context
 * are 0. */
struct wire_header {
	__u32 is_resolved;
	__u32 bytes[LONGEST_WIRE_HEADER / sizeof(__u32)];
	__u32 has_destination;
	__u8 destination[8]; /* the packet's new Ethernet destination, and two unused bytes */
};

_Static_assert(LONGEST_WIRE_HEADER % sizeof(__u32) == 0, "copied in words");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct wire_header);
	__uint(max_entries, 1);
} headers SEC(".maps");

/* See wire_in.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} ttls SEC(".maps");

static __always_inline struct myelin_line *exit_line(enum exit_line line)
{
	return counter_line(IMMEDIATE(line) + line);
}

static __always_inline int drop_and_count(const hook_ctx *ctx, enum exit_line line)
{
	count(ctx, exit_line(line));
	return HOOK_DROP;
}

/* Hashes the part of the packet with its addresses and ports. */
static __always_inline __u16 choose_source_port(const void *inner, const void *data_end)
{
	const __u32 *words = inner + 26;

	if ((const void *)(words + 4) > data_end)
		return bpf_htons(0xc000);

	__u32 hash = (words[0] ^ words[1] ^ words[2] ^ words[3]) * 0x9e3779b1u;

	/* RFC 7348, section 5: the dynamic ports. */
	return bpf_htons(0xc000 | hash >> 18);
}

static __always_inline __u16 checksum_ipv4(const void *header)
{
	const __u16 *words = header;
	__u32 sum = 0;

	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* Puts `tunnel` bytes and the NSH header in front of the packet. `tunnel` is a constant. Returns
 * false if the packet has no room for them. */
static __always_inline bool encapsulate(hook_ctx *ctx, const struct wire_header *header, __u32 ttl,
					__u64 stamp_ns, __u32 tunnel)
{
	const __u32 size = tunnel + sizeof(struct encapsulation);

	if (bpf_xdp_adjust_head(ctx, -(int)size))
		return false;

	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 *words = data;
	struct encapsulation *nsh = data + tunnel;

	struct ethhdr *inner = data + size;

	if ((void *)(inner + 1) > data_end)
		return false;
	/* The size is no multiple of four: the first two bytes of the packet stay. */
	for (__u32 i = 0; i < size / sizeof(__u32); i++)
		words[i] = header->bytes[i];
	if (size % sizeof(__u32))
		*(__u16 *)(words + size / sizeof(__u32)) =
			*(const __u16 *)(header->bytes + size / sizeof(__u32));
	if (header->has_destination && !(inner->h_dest[0] & 1))
		__builtin_memcpy(inner->h_dest, header->destination, ETH_ALEN);
	nsh->base = bpf_htonl(NSH_BASE | ttl << 22);
	if (stamp_ns) {
		nsh->stamp_high = bpf_htonl(stamp_ns >> 32);
		nsh->stamp_low = bpf_htonl(stamp_ns);
		nsh->kernel = bpf_htonl(IMMEDIATE(kernel));
	}

	__u16 length = data_end - data - sizeof(struct ethhdr);

	if (tunnel == sizeof(struct tunnel4)) {
		struct tunnel4 *outer = data;

		outer->ip.tot_len = bpf_htons(length);
		outer->ip.check = checksum_ipv4(data + sizeof(struct ethhdr));
		outer->vxlan.udp.len = bpf_htons(length - sizeof(struct iphdr));
		outer->vxlan.udp.source = choose_source_port(data + size, data_end);
	} else if (tunnel == sizeof(struct tunnel6)) {
		struct tunnel6 *outer = data;

		outer->ip.payload_len = bpf_htons(length - sizeof(struct ipv6hdr));
		outer->vxlan.udp.len = bpf_htons(length - sizeof(struct ipv6hdr));
		outer->vxlan.udp.source = choose_source_port(data + size, data_end);
	}
	return true;
}

static __always_inline bool put_headers(hook_ctx *ctx, const struct wire_header *header, __u32 ttl,
					__u64 stamp_ns)
{
	__u32 size = IMMEDIATE(header);

	if (size == sizeof(struct encapsulation))
		return encapsulate(ctx, header, ttl, stamp_ns, 0);
	if (size == sizeof(struct tunnel4) + sizeof(struct encapsulation))
		return encapsulate(ctx, header, ttl, stamp_ns, sizeof(struct tunnel4));
	return encapsulate(ctx, header, ttl, stamp_ns, sizeof(struct tunnel6));
}

HOOK_SECTION
int myelin_wire_out(hook_ctx *ctx)
{
	__u32 zero = 0, cell = IMMEDIATE(ttl), size = IMMEDIATE(header);
	const struct wire_header *header = bpf_map_lookup_elem(&headers, &zero);
	const __u32 *ttl = bpf_map_lookup_elem(&ttls, &cell);

	if (!header || !ttl || !header->is_resolved)
		return drop_and_count(ctx, EXIT_UNRESOLVED);

	__u64 stamp_ns = 0;

	if (!take_stamp(ctx, &stamp_ns))
		return drop_and_count(ctx, EXIT_TOO_LONG);

	__u32 length = hook_length(ctx), framed = length;

	/* The verifier forbids sums of a packet's end and a number. */
	asm("" : "+r"(framed));
	if (framed + size > IMMEDIATE(longest) || !put_headers(ctx, header, *ttl, stamp_ns))
		return drop_and_count(ctx, EXIT_TOO_LONG);

	struct myelin_line *sent = exit_line(EXIT_SENT);

	sent->packets++;
	sent->bytes += length;
	return HOOK_PASS;
}

#else

HOOK_SECTION
int myelin_wire_out(hook_ctx *ctx)
{
	return bpf_redirect(IMMEDIATE(ifindex), 0);
}

#endif

char LICENSE[] SEC("license") = "GPL";
