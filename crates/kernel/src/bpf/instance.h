/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * INSTANCE: read-only data of one instance of a program. The loader fills this data.
 */
#ifndef MYELIN_INSTANCE_H
#define MYELIN_INSTANCE_H

#include <linux/types.h>

#define INSTANCE_SECTION SEC(".rodata.instance")

/*
 * A 32-bit member of INSTANCE as an immediate operand, which the loader writes into the
 * instruction. A read from the map costs one more cache line. In a long chain a read costs more,
 * because the data of each program starts at a page. So all programs compete for the same few lines
 * of the L1 cache. The loader is myelin_kernel::immediate.
 */
#define IMMEDIATE_MARK 0x4d79656c00000000ULL
/* With `volatile`, the compiler loads the constant at each use and keeps no register for it. */
#define IMMEDIATE_AT(offset)                                                                \
	({                                                                                  \
		__u64 value_;                                                               \
		asm volatile("%0 = %1 ll" : "=r"(value_) : "i"(IMMEDIATE_MARK + (offset))); \
		(__u32) value_;                                                             \
	})
#define IMMEDIATE(member) IMMEDIATE_AT(__builtin_offsetof(typeof(INSTANCE), member))

/* Layout of the per-CPU counters on this machine. Every INSTANCE starts with this structure. */
struct counting {
	__u32 lines;	/* counter lines per CPU; a power of two */
	__u32 last_cpu; /* number of per-CPU parts minus one; a bit mask */
};

#define COUNTING(member) IMMEDIATE_AT(__builtin_offsetof(struct counting, member))

#endif
