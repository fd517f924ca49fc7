/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reports a packet that a router cannot forward to the agent, which sends the ICMP message: a
 * program cannot make a packet, and the checksum of an skb in hand may be left to the card.
 */
#ifndef MYELIN_REPORT_H
#define MYELIN_REPORT_H

#include "protocol.h"

/* Same values as in myelin_kernel::reports. */
enum report_reason {
	REPORT_TIME_EXCEEDED = 1,
	REPORT_TOO_BIG = 2,
};

/* Covers the longest quote (1232 bytes) behind the longest Ethernet header. */
#define REPORT_FRAME 1408
#define SHORTEST_IP  34
/* ICMP messages in one burst after a pause. Same number as in user space. */
#define REPORT_BURST 10

/* Same layout as myelin_kernel::reports::ReportHeader. */
struct report_header {
	__u16 l3;
	__u16 l4;
	__u16 payload;
	__u16 end;
	__u16 length; /* bytes of the frame */
	__u8 flags;
	__u8 protocol;
	__u32 reason;
};

_Static_assert(sizeof(struct report_header) == 16, "the layout is shared with user space");

struct report {
	struct report_header header;
	__u8 frame[REPORT_FRAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} reports SEC(".maps");

/* The time when the bucket of messages is full again, CLOCK_MONOTONIC (ITU-T I.371). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} report_limit SEC(".maps");

/* Takes a token of a bucket with `rate` tokens a second. Returns false without a token. */
static __always_inline bool take_report_token(__u32 rate)
{
	__u32 zero = 0;
	__u64 *full = bpf_map_lookup_elem(&report_limit, &zero);

	if (!full || !rate)
		return false;

	__u64 interval = 1000000000ULL / rate, now = bpf_ktime_get_ns(), seen = *full;
	__u64 next = (seen > now ? seen : now) + interval;

	return next <= now + interval * REPORT_BURST &&
	       __sync_val_compare_and_swap(full, seen, next) == seen;
}

static __always_inline bool read_frame(hook_ctx *ctx, void *to, __u32 length)
{
#if defined(MYELIN_HOOK_XDP)
	return bpf_xdp_load_bytes(ctx, 0, to, length) == 0;
#else
	return bpf_skb_load_bytes(ctx, 0, to, length) == 0;
#endif
}

static __always_inline bool write_report(hook_ctx *ctx, struct report *report, __u32 reason)
{
	struct headers headers;
	__u32 length = hook_length(ctx);

	if (length > REPORT_FRAME)
		length = REPORT_FRAME;
	if (length < SHORTEST_IP || !hook_headers(ctx, &headers) ||
	    !read_protocol(ctx, &headers, &report->header.protocol) ||
	    !read_frame(ctx, report->frame, length))
		return false;
	report->header.l3 = headers.l3;
	report->header.l4 = headers.l4;
	report->header.payload = headers.payload;
	report->header.end = headers.end < length ? headers.end : length;
	report->header.length = length;
	report->header.flags = headers.flags;
	report->header.reason = reason;
	return true;
}

/* Reports the packet, at most `rate` times a second. A frame without its tag is not reported. */
static __noinline int report_packet(hook_ctx *ctx, __u32 reason, __u32 rate)
{
	if (hook_stripped_tags(ctx) || !take_report_token(rate))
		return 0;

	struct report *report = bpf_ringbuf_reserve(&reports, sizeof(*report), 0);

	if (!report)
		return 0;
	if (write_report(ctx, report, reason))
		bpf_ringbuf_submit(report, 0);
	else
		bpf_ringbuf_discard(report, 0);
	return 0;
}

#endif
