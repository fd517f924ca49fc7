// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Uses the core for a given number of cycles per packet and per byte. Each step is an exclusive or
 * and a multiplication that depend on the step before. The loop's own instructions do not depend on
 * the steps, so they run in parallel. The steps are the same as those of myelin_functions::work.
 */
#include "next.h"

#define CYCLES_PER_STEP 4
#define MAX_CYCLES	200000
/* Steps between two checks of the remaining work. */
#define BLOCK	   10
#define MAX_BLOCKS (MAX_CYCLES / CYCLES_PER_STEP / BLOCK)

const volatile struct {
	struct hop hop;
	__u64 cycles;
	__u64 cycles_per_byte;
} INSTANCE INSTANCE_SECTION;

#define STEP(value) (value = (value ^ 0x5555555555555555) * 0x9e3779b97f4a7c15)

/* The verifier does not know `value`, so all iterations have the same state for the verifier. */
static __always_inline __u64 work(__u64 value, __u32 steps)
{
	__u32 blocks = steps / BLOCK, rest = steps % BLOCK;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_BLOCKS; i++) {
		if (i >= blocks)
			break;
#pragma clang loop unroll(full)
		for (__u32 j = 0; j < BLOCK; j++)
			STEP(value);
	}
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < BLOCK; i++) {
		if (i >= rest)
			break;
		STEP(value);
	}
	return value;
}

HOOK_SECTION
int myelin_work(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));
	__u64 entered = hop_enter(ctx, line);
	__u64 length = hook_length(ctx);
	__u64 cycles = INSTANCE.cycles + INSTANCE.cycles_per_byte * length;

	if (cycles > MAX_CYCLES)
		cycles = MAX_CYCLES;
	length = work(length, (cycles + CYCLES_PER_STEP - 1) / CYCLES_PER_STEP);
	/* Prevents the compiler from removing the work. */
	asm volatile("" : : "r"(length));
	hop_leave(line, entered);
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
