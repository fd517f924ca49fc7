/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Totals of a function's flow table. */
#ifndef MYELIN_FLOW_TOTALS_H
#define MYELIN_FLOW_TOTALS_H

#include "flow_key.h"

/*
 * Totals of a flow table: one element for each CPU, with one writer. The kernel does not report
 * evictions. So user space subtracts the flows in the table from `inserted`. Same layout as
 * myelin_kernel::flows::Totals.
 */
struct flow_totals {
	__u64 inserted;	 /* flows inserted under a new key */
	__u64 replaced;	 /* flows that replaced an ended flow with the same key */
	__u64 untracked; /* packets without a flow */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_totals);
	__uint(max_entries, 1);
} flow_totals SEC(".maps");

#endif
