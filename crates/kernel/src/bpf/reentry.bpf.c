// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The re-entry door: takes packets from a worker back into the kernel. A worker sends a packet over
 * an internal link behind Ethernet and NSH (RFC 8300). The door removes these headers, restores the
 * metadata in front of the frame, and continues at the kernel function of the path. XDP only.
 */
#include "nsh.h"
#include "next.h"

/* Same layout as myelin_kernel::reentry::PathKey. */
struct path_key {
	__u32 spi;
	__u16 generation;
	__u8 position;
	__u8 padding;
};

/* Maps a path to the slot of the kernel function. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct path_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} paths SEC(".maps");

/* Counter lines of the door; same order as in myelin_kernel::reentry. */
enum reentry_line {
	REENTRY_FOREIGN = 0, /* without Myelin's encapsulation */
	REENTRY_UNPARSED = 1,
	REENTRY_UNKNOWN = 2, /* no kernel function on this path */
};

/* Same layout as myelin_kernel::reentry::ReentryInstance. */
const volatile struct reentry {
	struct counting counting;
	__u32 line; /* the door's first counter line */
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

static __always_inline int drop_and_count(const hook_ctx *ctx, enum reentry_line line)
{
	count(ctx, counter_line(IMMEDIATE(line) + line));
	return XDP_DROP;
}

HOOK_SECTION
int myelin_reentry(hook_ctx *ctx)
{
	struct myelin_meta meta = {};
	struct headers headers = {};
	union key key = {};

	if (!read_encapsulation(ctx, &meta) ||
	    bpf_xdp_adjust_head(ctx, sizeof(struct encapsulation)))
		return drop_and_count(ctx, REENTRY_FOREIGN);
	if (parse(ctx, &headers, &key))
		return drop_and_count(ctx, REENTRY_UNPARSED);
	meta_set_headers(&meta, &headers);

	const struct path_key path = {
		.spi = meta.spi,
		.generation = meta.generation,
		.position = meta.position,
	};
	const __u32 *slot = bpf_map_lookup_elem(&paths, &path);

	if (slot && hook_save(ctx, &meta))
		bpf_tail_call(ctx, &programs, *slot);
	return drop_and_count(ctx, REENTRY_UNKNOWN);
}

char LICENSE[] SEC("license") = "GPL";
