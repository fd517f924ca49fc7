/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a function counts of its table of flows. */
#ifndef MYELIN_FLOW_TOTALS_H
#define MYELIN_FLOW_TOTALS_H

#include "flow_key.h"

/*
 * What a function counts of its table; one element a CPU, one writer each. Evicted is what began
 * and is neither there nor was replaced: the kernel does not tell of it. Twin:
 * myelin_kernel::flows::Totals.
 */
struct flow_totals {
	__u64 inserted;
	__u64 begun_again; /* flows that began in the entry of an older one of the same key */
	__u64 outside;	   /* packets of no flow */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_totals);
	__uint(max_entries, 1);
} flow_totals SEC(".maps");

#endif
