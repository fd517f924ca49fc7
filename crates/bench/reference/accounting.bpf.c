// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The cost of counting, stamping and sojourn recording for a packet of a one-function chain.
 * `accounted` does all of them with the kernel crate's code, in its order: front door, function,
 * egress. `bare` only carries the metadata and sends. The cost is the difference of both. `clock`
 * reads the clock READS times, `empty` never.
 */
#include "next.h"

#define READS 64

enum {
	LINE_DOOR = 0,
	LINE_FUNCTION = 1,
	LINE_EGRESS = 2,
};

/* Same layout: myelin_bench::ebpf::Accounting. */
const volatile struct {
	struct hop hop; /* of the function */
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int accounted(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(LINE_DOOR);

	const struct myelin_meta meta = {.stamp_ns = bpf_ktime_get_ns(), .spi = 1};

	if (!hook_save(ctx, &meta))
		return HOOK_DROP;
	count(ctx, line);
	line->last_ns = meta.stamp_ns;

	line = counter_line(LINE_FUNCTION);
	hop_leave(line, hop_enter(ctx, line));
	return hop_egress(ctx, false);
}

HOOK_SECTION
int bare(hook_ctx *ctx)
{
	const struct myelin_meta meta = {.spi = 1};

	if (!hook_save(ctx, &meta))
		return HOOK_DROP;
	return hook_redirect(HOP(ifindex), false);
}

HOOK_SECTION
int clock(hook_ctx *ctx)
{
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < READS; i++)
		sum += bpf_ktime_get_ns();
	/* Never 0, but the verifier does not know this. */
	return sum ? HOOK_PASS : HOOK_DROP;
}

HOOK_SECTION
int empty(hook_ctx *ctx)
{
	return HOOK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
