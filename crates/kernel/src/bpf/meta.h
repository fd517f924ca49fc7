/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The metadata of a packet, from the front door to the end of its chain. Same layout as
 * myelin_packet::Meta.
 */
#ifndef MYELIN_META_H
#define MYELIN_META_H

#include <linux/types.h>

/* Bits of `flags`; same as myelin_packet::Flags. */
enum {
	FLAG_IPV6 = 1 << 0,
	FLAG_FRAGMENT = 1 << 1,
	FLAG_PORTS = 1 << 2, /* the parser found a UDP or TCP header */
};

/* Native endian, directly in front of the Ethernet header. Offsets count from that header. */
struct myelin_meta {
	__u64 stamp_ns; /* CLOCK_MONOTONIC at the front door */
	__u32 spi;	/* service path identifier, 24 bits */
	__u16 generation;
	__u8 position; /* index of the next function */
	__u8 flags;
	__u16 l3;
	__u16 l4;
	__u16 payload; /* equals l4 without FLAG_PORTS */
	__u16 end;     /* end of the IP packet, or of a shorter UDP datagram */
};

_Static_assert(sizeof(struct myelin_meta) == 24, "the layout is shared with user space");

/*
 * Replaces the stamp of a packet that has left its chain at XDP and now passes to tc, which
 * transmits the packet at the interface `spi`. An XDP redirect into a veth needs NAPI at the far
 * end; the stack's transmit path works with every interface.
 */
#define STAMP_LEAVING 0x796d5f6c65617665ULL

/* The offsets of the headers, as part of the metadata. */
struct headers {
	__u16 l3;
	__u16 l4;
	__u16 payload;
	__u16 end;
	__u8 flags;
	__u8 protocol; /* known to the parser only; not part of the metadata */
};

#endif
