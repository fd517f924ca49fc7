// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* A function that changes no packet, to measure the cost of a hop. */
#include "next.h"

const volatile struct {
	struct hop hop;
} INSTANCE INSTANCE_SECTION;

HOOK_SECTION
int myelin_forward(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	hop_leave(line, hop_enter(ctx, line));
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
