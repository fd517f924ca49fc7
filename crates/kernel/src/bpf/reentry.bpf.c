// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The door back into the kernel: a worker sends a packet over an internal link behind Ethernet and
 * NSH (RFC 8300); here they come off, the metadata goes back in front of the frame, and the packet
 * goes on to the kernel function its path names. Twin of the header: myelin_packet::nsh. XDP only.
 */
#include "parse.h"
#include "next.h"

/* Version 0, no OAM bit, 6 words, MD type 1, Ethernet inside; the time to live may be any but 0. */
#define NSH_BASE      ((6u << 16) | (1 << 8) | 3)
#define NSH_BASE_MASK 0xe03f0fffu
#define NSH_TTL_MASK  (63u << 22)

struct encapsulation {
	struct ethhdr ethernet;
	__be32 base;
	__be32 path; /* service path identifier << 8 | service index */
	__be32 stamp_high;
	__be32 stamp_low;
	__be16 generation;
	__u8 position;
	__u8 flags;
	__be32 reserved;
} __attribute__((packed));

_Static_assert(sizeof(struct encapsulation) == 38, "the layout is shared with user space");

/* Twin: myelin_kernel::reentry::PathKey. */
struct path_key {
	__u32 spi;
	__u16 generation;
	__u8 position;
	__u8 spare;
};

/* From path to the slot of the kernel function that goes on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct path_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} paths SEC(".maps");

/* Lines of the block of counters; twin: myelin_kernel::reentry. */
enum reentry_line {
	REENTRY_FOREIGN = 0, /* not one of Myelin's encapsulated frames */
	REENTRY_UNPARSED = 1,
	REENTRY_UNKNOWN = 2, /* no kernel function waits at the end of this path */
};

/* Twin: myelin_kernel::reentry::Instance. */
const volatile struct reentry {
	__u32 lines; /* counter lines a CPU */
	__u32 line;  /* first of the block */
} INSTANCE INSTANCE_SECTION;

static __always_inline int refuse(const hook_ctx *ctx, enum reentry_line line)
{
	count_at(ctx, INSTANCE.lines, INSTANCE.line + line);
	return XDP_DROP;
}

/* Reads the header into `meta`, all but the offsets. */
static __always_inline bool read_encapsulation(const hook_ctx *ctx, struct myelin_meta *meta)
{
	const struct encapsulation *outer = (void *)(long)ctx->data;

	if ((const void *)(outer + 1) > (void *)(long)ctx->data_end)
		return false;

	__u32 base = bpf_ntohl(outer->base), path = bpf_ntohl(outer->path);

	if (outer->ethernet.h_proto != bpf_htons(ETH_P_NSH) || (base & NSH_BASE_MASK) != NSH_BASE ||
	    !(base & NSH_TTL_MASK) || (path & 0xff) != 255u - outer->position)
		return false;
	meta->stamp_ns = (__u64)bpf_ntohl(outer->stamp_high) << 32 | bpf_ntohl(outer->stamp_low);
	meta->spi = path >> 8;
	meta->generation = bpf_ntohs(outer->generation);
	meta->position = outer->position;
	return true;
}

HOOK_SECTION
int myelin_reentry(hook_ctx *ctx)
{
	struct myelin_meta meta = {};
	struct headers headers = {};
	union key key = {};

	if (!read_encapsulation(ctx, &meta) ||
	    bpf_xdp_adjust_head(ctx, sizeof(struct encapsulation)))
		return refuse(ctx, REENTRY_FOREIGN);
	if (parse(ctx, &headers, &key))
		return refuse(ctx, REENTRY_UNPARSED);
	meta.flags = headers.flags;
	meta.l3 = headers.l3;
	meta.l4 = headers.l4;
	meta.payload = headers.payload;
	meta.end = headers.end;

	const struct path_key path = {
		.spi = meta.spi,
		.generation = meta.generation,
		.position = meta.position,
	};
	const __u32 *slot = bpf_map_lookup_elem(&paths, &path);

	if (slot && hook_save(ctx, &meta))
		bpf_tail_call(ctx, &programs, *slot);
	return refuse(ctx, REENTRY_UNKNOWN);
}

char LICENSE[] SEC("license") = "GPL";
