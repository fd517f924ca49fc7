/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What one instance of a program has of its own: INSTANCE, read-only data that the loader fills.
 */
#ifndef MYELIN_INSTANCE_H
#define MYELIN_INSTANCE_H

#include <linux/types.h>

#define INSTANCE_SECTION SEC(".rodata.instance")

/*
 * A 32-bit member of INSTANCE as an operand of an instruction, which the loader writes there. Read
 * from the map it would be one more cache line, and in a long chain more: the data of all programs
 * lie at the start of a page of their own and so compete for the same few lines of the first cache.
 * Twin: myelin_kernel::immediate.
 */
#define IMMEDIATE_MARK 0x4d79656c00000000ULL
/* Volatile, so that it stands where it is used instead of in a register that must be saved. */
#define IMMEDIATE_AT(offset)                                                                \
	({                                                                                  \
		__u64 value_;                                                               \
		asm volatile("%0 = %1 ll" : "=r"(value_) : "i"(IMMEDIATE_MARK + (offset))); \
		(__u32) value_;                                                             \
	})
#define IMMEDIATE(member) IMMEDIATE_AT(__builtin_offsetof(typeof(INSTANCE), member))

/* Where this machine keeps what every CPU counts for itself. Every INSTANCE starts with it. */
struct counting {
	__u32 lines;	/* counter lines a CPU; a power of two */
	__u32 last_cpu; /* number of parts, less one; a power of two, less one */
};

#define COUNTING(member) IMMEDIATE_AT(__builtin_offsetof(struct counting, member))

#endif
