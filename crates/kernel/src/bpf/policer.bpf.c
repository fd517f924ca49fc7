// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Declares the map of policers, because the map's lock needs the BTF of an object. The program runs
 * one policer over a trace, for tests.
 */
#include "hook.h"
#include "instance.h"
#include "departure.h"

/* Same layout as `instance` in myelin_kernel::test_run::load_policer. */
const volatile struct trial {
	__u32 number; /* the policer's number */
	__u32 single_cpu;
	__u32 shapes; /* 1: store departure times instead of verdicts */
} INSTANCE INSTANCE_SECTION;

/* Element of the test run's frame; same layout as `Arrival` in tests/suite/trial.rs. */
struct arrival {
	__u64 at_ns; /* 0: now; the program stores the clock reading or the departure time */
	__u32 packets;
	__u32 bytes; /* the program stores 1 if the packets conform, else 0 */
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
				departure_ns(policer, now_ns, arrival->packets, arrival->bytes);
			continue;
		}
		if (IMMEDIATE(single_cpu))
			arrival->bytes =
				police(policer, now_ns, arrival->packets, arrival->bytes, true);
		else
			arrival->bytes =
				police(policer, now_ns, arrival->packets, arrival->bytes, false);
	}
	return HOOK_DROP;
}

char LICENSE[] SEC("license") = "GPL";
