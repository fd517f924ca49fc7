/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Forwards a packet after a kernel function. Each function of each chain is its own program. The
 * program's `struct hop` is read-only data, frozen before the load. So the verifier removes
 * branches that the program never takes, and the JIT makes the tail call a direct jump.
 */
#ifndef MYELIN_NEXT_H
#define MYELIN_NEXT_H

#include "counters.h"
#include "instance.h"
#include "sojourn.h"
#include "wire.h"

enum exit {
	EXIT_NEXT = 1,		/* the next kernel function */
	EXIT_REDIRECT = 2,	/* transmit at `ifindex` */
	EXIT_PEER = 3,		/* directly to the far end of the veth `ifindex` */
	EXIT_USER = 4,		/* the AF_XDP socket of the receive queue */
	EXIT_LINK = 5,		/* to the other end of the link `ifindex`, in another namespace */
	EXIT_LINK_OTHER_NS = 6, /* EXIT_LINK from the namespace of a function; XDP only */
	EXIT_REDIRECT_OTHER_NS = 7, /* EXIT_REDIRECT from the namespace of a function; XDP only */
	EXIT_STACK = 8,		    /* to tc, which transmits at `ifindex`; XDP only */
	EXIT_WIRE = 9, /* over the exit link `ifindex` to another node, with the stamp */
};

/* Same layout as myelin_kernel::hop::Hop. */
struct hop {
	struct counting counting;
	__u32 line; /* this function's counter line */
	__u32 exit;
	__u32 next;	   /* EXIT_NEXT: slot of the next function; EXIT_USER: position of the
			    * next function; EXIT_..._OTHER_NS: index into `devices` */
	__u32 ifindex;	   /* EXIT_REDIRECT, EXIT_PEER, EXIT_LINK, EXIT_STACK, EXIT_WIRE */
	__u32 egress_line; /* EXIT_REDIRECT, EXIT_PEER, EXIT_STACK, EXIT_WIRE */
	__u32 fallback;	   /* verdict if the next function or the socket is missing */
};

/* A member of the program's hop. INSTANCE starts with the hop. */
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
 * Interfaces of the plane's namespace, for programs in other namespaces. An interface index is
 * valid in its own namespace only; a map entry is valid everywhere.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} devices SEC(".maps");

/* Redirects the packet to the socket of its receive queue. Returns false without a socket. */
static __always_inline bool redirect_to_socket(const hook_ctx *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_ABORTED) == XDP_REDIRECT;
}
#endif

/* A function times every 1024th packet on each CPU. */
#define SAMPLE_EVERY 1024

/* Counts an arriving packet. Returns the time for a packet that the function times, else 0. */
static __always_inline __u64 hop_enter(const hook_ctx *ctx, struct myelin_line *line)
{
	count(ctx, line);
	/* The hint moves rare code behind the rest of the program. In a long chain the code of all
	 * programs competes for the instruction cache. */
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

/* Records that the packet leaves the chain at `now`. Returns false if the packet has no stamp. */
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
	sojourn_record(now - stamp_ns, hook_segments(ctx));
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

/* Returns the fallback verdict for a packet whose next function, socket or interface is missing. */
static __always_inline int hop_apply_fallback(const hook_ctx *ctx)
{
	if (HOP(fallback) == HOOK_DROP)
		count_drop(ctx, HOP(line));
	return HOP(fallback);
}

#if defined(MYELIN_HOOK_XDP)
/* Redirects to an interface of another namespace. With `leaves`, the packet leaves the chain. */
static __always_inline int hop_redirect_other_ns(const hook_ctx *ctx, bool leaves)
{
	if (bpf_redirect_map(&devices, HOP(next), XDP_ABORTED) != XDP_REDIRECT)
		return hop_apply_fallback(ctx);
	return !leaves || hop_count_out(ctx) ? XDP_REDIRECT : XDP_DROP;
}
#endif

static __always_inline int hop_leave_by_wire(hook_ctx *ctx)
{
	__u64 stamp_ns;

	if (!hook_stamp(ctx, &stamp_ns) || !hop_count_out(ctx))
		return HOOK_DROP;
	if (put_stamp_in_front(ctx, stamp_ns))
		return bpf_redirect(HOP(ifindex), 0);
	count_drop(ctx, HOP(line));
	return HOOK_DROP;
}

static __always_inline int hop_exit(hook_ctx *ctx)
{
	if (HOP(exit) == EXIT_NEXT) {
		bpf_tail_call(ctx, &programs, HOP(next));
		return hop_apply_fallback(ctx);
	}
#if defined(MYELIN_HOOK_XDP)
	if (HOP(exit) == EXIT_USER) {
		if (hook_set_position(ctx, HOP(next)) && redirect_to_socket(ctx))
			return XDP_REDIRECT;
		return hop_apply_fallback(ctx);
	}
	if (HOP(exit) == EXIT_STACK)
		return hop_count_out(ctx) && hook_mark_leaving(ctx, HOP(ifindex)) ? XDP_PASS
										  : XDP_DROP;
	if (HOP(exit) == EXIT_LINK_OTHER_NS)
		return hop_redirect_other_ns(ctx, false);
	if (HOP(exit) == EXIT_REDIRECT_OTHER_NS)
		return hop_redirect_other_ns(ctx, true);
#endif
	if (HOP(exit) == EXIT_WIRE)
		return hop_leave_by_wire(ctx);
	/* At tc the program at the other end of the link runs at once, before the next packet. At
	 * XDP the packet waits until the NAPI batch is done. */
	if (HOP(exit) == EXIT_LINK)
		return hook_redirect(HOP(ifindex), true);
	return hop_egress(ctx, HOP(exit) == EXIT_PEER);
}

#endif
