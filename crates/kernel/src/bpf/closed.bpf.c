// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What stands in the slot of a function that is gone, for packets that are still in its chain. To
 * empty the slot instead would make the kernel wait for every CPU, some 15 ms for each function.
 */
#include "hook.h"

HOOK_SECTION
int myelin_closed(hook_ctx *ctx)
{
	return HOOK_DROP;
}

char LICENSE[] SEC("license") = "GPL";
