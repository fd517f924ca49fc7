/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters that user space reads through mmap. A per-CPU array cannot be mapped, so this map is a
 * plain array. Line `cpu * lines + line` has one writer and its own cache line, so increments need
 * no atomic operation.
 */
#ifndef MYELIN_COUNTERS_H
#define MYELIN_COUNTERS_H

#include "hook.h"
#include "instance.h"

/* Same layout as myelin_kernel::counters::CounterLine. */
struct myelin_line {
	__u64 packets;
	__u64 bytes;
	__u64 drops;
	__u64 last_ns;	  /* time of the last packet, CLOCK_MONOTONIC; 0 if not recorded */
	__u64 sampled_ns; /* time spent in `samples` runs of a function */
	__u64 samples;
	__u64 policed; /* at the front door: packets above the profile; at a function: the counter
			* that its kind describes */
	__u64 policed_bytes;
};

_Static_assert(sizeof(struct myelin_line) == 64, "one cache line");

/*
 * The loader sets the size. Programs know the array's address, so a program finds a line by an
 * addition, without a look-up.
 */
struct myelin_line counters[1] SEC(".data.counters");

/* Returns this CPU's line `line`. The loader wrote `line` into the program. */
static __always_inline struct myelin_line *counter_line(__u32 line)
{
	__u32 first = (bpf_get_smp_processor_id() & COUNTING(last_cpu)) * COUNTING(lines);
	struct myelin_line *lines = counters;

	/* The compiler must not assume an array of one element. */
	asm("" : "+r"(lines));
	return lines + (first + line);
}

/* Returns this CPU's line `line`. The program read `line` from a map. */
static __always_inline struct myelin_line *counter_line_of(__u32 line)
{
	return counter_line(line & (COUNTING(lines) - 1));
}

static __always_inline void count(const hook_ctx *ctx, struct myelin_line *line)
{
	line->packets += hook_segments(ctx);
	line->bytes += hook_length(ctx);
}

static __always_inline void count_drop(const hook_ctx *ctx, __u32 line)
{
	counter_line(line)->drops += hook_segments(ctx);
}

#endif
