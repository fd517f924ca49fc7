/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters that user space reads through mmap. A plain array, because a per-CPU array cannot be
 * mapped: line `cpu * lines + line` has one writer, so increments need no atomic operation, and a
 * cache line of its own.
 */
#ifndef MYELIN_COUNTERS_H
#define MYELIN_COUNTERS_H

#include "hook.h"

/* Twin: myelin_kernel::counters. */
struct myelin_line {
	__u64 packets;
	__u64 bytes;
	__u64 drops;
	__u64 last_ns;	  /* when the last packet was counted, CLOCK_MONOTONIC; 0 if not kept */
	__u64 sampled_ns; /* time spent in `samples` runs of a function */
	__u64 samples;
	__u64 spare[2];
};

_Static_assert(sizeof(struct myelin_line) == 64, "one cache line");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct myelin_line);
	__uint(max_entries, 1);
} counters SEC(".maps");

/* This CPU's line `line` of `lines`. */
static __always_inline struct myelin_line *counter_line(__u32 lines, __u32 line)
{
	__u32 key = bpf_get_smp_processor_id() * lines + line;

	return bpf_map_lookup_elem(&counters, &key);
}

static __always_inline void count(const hook_ctx *ctx, struct myelin_line *line)
{
	line->packets += hook_segments(ctx);
	line->bytes += hook_length(ctx);
}

/* Counts one packet where nothing else needs the line. */
static __always_inline void count_at(const hook_ctx *ctx, __u32 lines, __u32 line)
{
	struct myelin_line *at = counter_line(lines, line);

	if (at)
		count(ctx, at);
}

static __always_inline void count_drop(const hook_ctx *ctx, __u32 lines, __u32 line)
{
	struct myelin_line *at = counter_line(lines, line);

	if (at)
		at->drops += hook_segments(ctx);
}

#endif
