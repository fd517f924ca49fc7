// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Replaces the program of a removed function, for packets that are still in the chain. Deleting the
 * slot's entry instead would make the kernel wait for every CPU, about 15 ms for each function.
 */
#include "hook.h"

HOOK_SECTION
int myelin_closed(hook_ctx *ctx)
{
	return HOOK_DROP;
}

char LICENSE[] SEC("license") = "GPL";
