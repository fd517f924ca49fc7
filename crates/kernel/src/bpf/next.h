/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * How a packet leaves a kernel function. Each function of each chain is a program of its own whose
 * `struct hop` is read-only data frozen before the program is loaded: the verifier knows it, cuts
 * the branches that cannot be taken, and the JIT turns the tail call into a direct jump.
 */
#ifndef MYELIN_NEXT_H
#define MYELIN_NEXT_H

#include "counters.h"
#include "instance.h"
#include "sojourn.h"

enum exit {
	EXIT_NEXT = 1,		  /* the next kernel function */
	EXIT_REDIRECT = 2,	  /* out at `ifindex` */
	EXIT_PEER = 3,		  /* straight to the far end of the veth `ifindex` */
	EXIT_USER = 4,		  /* the AF_XDP socket of the receive queue */
	EXIT_LINK = 5,		  /* to the other end of the link `ifindex`, in another namespace */
	EXIT_LINK_ACROSS = 6,	  /* as EXIT_LINK, from a function's namespace; XDP only */
	EXIT_REDIRECT_ACROSS = 7, /* as EXIT_REDIRECT, from there; XDP only */
};

/* Twin: myelin_kernel::instance::Hop. */
struct hop {
	struct counting counting;
	__u32 line; /* of this function */
	__u32 exit;
	__u32 next;	   /* EXIT_NEXT: the next function's slot; EXIT_USER: its position;
			    * EXIT_..._ACROSS: where in `devices` */
	__u32 ifindex;	   /* EXIT_REDIRECT, EXIT_PEER, EXIT_LINK */
	__u32 egress_line; /* EXIT_REDIRECT, EXIT_PEER */
	__u32 fallback;	   /* verdict when the next function or the socket is not there */
};

/* A member of the program's hop, with which INSTANCE starts. */
#define HOP(member) IMMEDIATE_AT(__builtin_offsetof(struct hop, member))

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} programs SEC(".maps");

#if defined(MYELIN_HOOK_XDP)
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} sockets SEC(".maps");

/*
 * Interfaces of the plane's namespace, for programs in other ones: an index means nothing there,
 * but an entry is an interface, whoever made it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} devices SEC(".maps");

/* Hands the packet to the socket of its receive queue; false when there is none. */
static __always_inline bool to_user(const hook_ctx *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_ABORTED) == XDP_REDIRECT;
}
#endif

/* Every 1024th packet of a function on a CPU is timed. */
#define SAMPLE_EVERY 1024

/* Counts a packet in; the time if this one is to be timed, else 0. */
static __always_inline __u64 hop_enter(const hook_ctx *ctx, struct myelin_line *line)
{
	count(ctx, line);
	/* Said to be likely, so that what is seldom needed lies behind the rest of the program: in
	 * a long chain the code of all programs competes for the instruction cache. */
	if (__builtin_expect(line->packets % SAMPLE_EVERY == 0, 0))
		return bpf_ktime_get_ns();
	return 0;
}

static __always_inline void hop_leave(struct myelin_line *line, __u64 entered)
{
	if (entered) {
		line->sampled_ns += bpf_ktime_get_ns() - entered;
		line->samples++;
	}
}

static __always_inline int hop_drop(const hook_ctx *ctx, struct myelin_line *line)
{
	line->drops += hook_segments(ctx);
	return HOOK_DROP;
}

/* Records that the packet leaves the chain at that time; false when nobody knows when it came. */
static __always_inline bool hop_count_out_at(const hook_ctx *ctx, __u64 now)
{
	struct myelin_line *line = counter_line(HOP(egress_line));
	__u64 stamp_ns;

	if (!hook_stamp(ctx, &stamp_ns)) {
		count_drop(ctx, HOP(line));
		return false;
	}
	count(ctx, line);
	line->last_ns = now;
	sojourn_record(now - stamp_ns);
	return true;
}

static __always_inline bool hop_count_out(const hook_ctx *ctx)
{
	return hop_count_out_at(ctx, bpf_ktime_get_ns());
}

static __always_inline int hop_egress(const hook_ctx *ctx, bool peer)
{
	return hop_count_out(ctx) ? hook_redirect(HOP(ifindex), peer) : HOOK_DROP;
}

/* The next function, the socket or the interface is not there. */
static __always_inline int hop_failed(const hook_ctx *ctx)
{
	if (HOP(fallback) == HOOK_DROP)
		count_drop(ctx, HOP(line));
	return HOP(fallback);
}

#if defined(MYELIN_HOOK_XDP)
/* To an interface of another namespace; `leaves`: out of the chain. */
static __always_inline int hop_across(const hook_ctx *ctx, bool leaves)
{
	if (bpf_redirect_map(&devices, HOP(next), XDP_ABORTED) != XDP_REDIRECT)
		return hop_failed(ctx);
	return !leaves || hop_count_out(ctx) ? XDP_REDIRECT : XDP_DROP;
}
#endif

static __always_inline int hop_exit(hook_ctx *ctx)
{
	if (HOP(exit) == EXIT_NEXT) {
		bpf_tail_call(ctx, &programs, HOP(next));
		return hop_failed(ctx);
	}
#if defined(MYELIN_HOOK_XDP)
	if (HOP(exit) == EXIT_USER) {
		if (hook_set_position(ctx, HOP(next)) && to_user(ctx))
			return XDP_REDIRECT;
		return hop_failed(ctx);
	}
	if (HOP(exit) == EXIT_LINK_ACROSS)
		return hop_across(ctx, false);
	if (HOP(exit) == EXIT_REDIRECT_ACROSS)
		return hop_across(ctx, true);
#endif
	/* At tc the packet is there at once, and what stands there goes on with it before the next
	 * packet is looked at; at XDP it waits until the receive work's batch is done. */
	if (HOP(exit) == EXIT_LINK)
		return hook_redirect(HOP(ifindex), true);
	return hop_egress(ctx, HOP(exit) == EXIT_PEER);
}

#endif
