// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Makes the map of policers, whose lock needs the type information of an object; and a program, for
 * tests, that runs one of them over a trace.
 */
#include "hook.h"
#include "instance.h"
#include "departure.h"

/* Twin: myelin_kernel::test_run::policer::Instance. */
const volatile struct trial {
	__u32 number; /* the policer's */
	__u32 alone;
	__u32 shapes; /* tells when each may leave instead */
} INSTANCE INSTANCE_SECTION;

/* What the test run's frame is made of; twin: myelin_kernel::test_run::policer::Arrival. */
struct arrival {
	__u64 at_ns; /* 0: now; the time that was read, or of the departure, is left here */
	__u32 packets;
	__u32 bytes; /* 1 when they conform, 0 when not, is left here */
};

_Static_assert(sizeof(struct arrival) == 16, "the layout is shared with user space");

#define MAX_ARRIVALS 200

HOOK_SECTION
int myelin_policer(hook_ctx *ctx)
{
	struct arrival *arrival = (void *)(long)ctx->data;
	const void *end = (void *)(long)ctx->data_end;
	__u32 number = IMMEDIATE(number);
	struct policer *policer = bpf_map_lookup_elem(&policers, &number);

	if (!policer)
		return HOOK_PASS;
	for (int i = 0; i < MAX_ARRIVALS; i++, arrival++) {
		if ((const void *)(arrival + 1) > end)
			break;

		__u64 now_ns = arrival->at_ns ? arrival->at_ns : bpf_ktime_get_ns();

		arrival->at_ns = now_ns;
		if (IMMEDIATE(shapes)) {
			arrival->at_ns =
				departure(policer, now_ns, arrival->packets, arrival->bytes);
			continue;
		}
		if (IMMEDIATE(alone))
			arrival->bytes =
				police(policer, now_ns, arrival->packets, arrival->bytes, true);
		else
			arrival->bytes =
				police(policer, now_ns, arrival->packets, arrival->bytes, false);
	}
	return HOOK_DROP;
}

char LICENSE[] SEC("license") = "GPL";
