// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Tracks flows from the first packet to the last packet. Follows the rules of
 * myelin_functions::flow_tracker and myelin_packet::flow_marks.
 *
 * The two directions of a flow may run on different CPUs. So the program adds to counters
 * atomically, and never clears a mark of a flow.
 */
#include "flow_totals.h"
#include "next.h"

/* Same layout as myelin_kernel::flows::TrackerInstance. */
const volatile struct flow_tracker {
	struct hop hop;
	__u64 timeout_ns;
	__u64 tcp_new_ns;
	__u64 tcp_established_ns;
	__u64 tcp_closing_ns;
	__u64 tcp_closed_ns;
	__u32 drops_invalid;
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

/* Same bits as myelin_packet::FlowMarks. */
enum {
	OPENED_BY_SECOND = 1 << 0,
	ANSWERED = 1 << 1,
	ACKNOWLEDGED = 1 << 2,
	FIRST_DONE = 1 << 3,
	SECOND_DONE = 1 << 4,
	RESET = 1 << 5,
};

/* Flags of the TCP header (RFC 9293, section 3.1). */
enum {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
	TCP_FLAGS_AT = 13,
};

/* The index of an array is the end of the flow. Same layout as myelin_packet::TrackedFlow. */
struct tracked {
	__u64 packets[2];
	__u64 bytes[2];
	__u64 first_ns;
	__u64 last_ns;
	__u32 marks;
	__u32 spare;
};

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct tracked);
	__uint(max_entries, 1);
} flows SEC(".maps");

/* The properties of a packet that tracking needs. */
struct event {
	struct flow_key key;
	__u64 now_ns;
	__u32 from_second; /* 0 or 1: the end that sent the packet */
	bool is_tcp;
	__u8 flags;
};

/* Orders the ends of the flow independently of the packet's direction. */
static __always_inline __u32 order_ends(struct flow_key *key)
{
	const __u64 *source = (void *)key->source, *destination = (void *)key->destination;
	bool second;

	if (source[0] != destination[0])
		second = source[0] > destination[0];
	else if (source[1] != destination[1])
		second = source[1] > destination[1];
	else
		second = key->source_port > key->destination_port;
	if (!second)
		return 0;

	struct flow_key reversed = *key;

	__builtin_memcpy(reversed.source, key->destination, sizeof(reversed.source));
	__builtin_memcpy(reversed.destination, key->source, sizeof(reversed.destination));
	reversed.source_port = key->destination_port;
	reversed.destination_port = key->source_port;
	*key = reversed;
	return 1;
}

static __always_inline bool read_event(hook_ctx *ctx, struct event *event)
{
	struct headers headers;

	if (!hook_headers(ctx, &headers) || !hook_stamp(ctx, &event->now_ns) ||
	    !read_flow_key(ctx, &headers, &event->key))
		return false;
	event->is_tcp = event->key.protocol == IPPROTO_TCP && headers.flags & FLAG_PORTS;
	event->flags = 0;
	if (event->is_tcp) {
		const __u8 *tcp = (void *)(long)ctx->data + (headers.l4 & MAX_OFFSET);

		if ((const void *)(tcp + TCP_FLAGS_AT + 1) > (void *)(long)ctx->data_end)
			return false;
		event->flags = tcp[TCP_FLAGS_AT];
	}
	event->from_second = order_ends(&event->key);
	return true;
}

static __always_inline bool opens_flow(const struct event *event)
{
	const __u8 all = TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN;

	return !event->is_tcp || (event->flags & all) == TCP_SYN;
}

static __always_inline bool is_closed(const struct event *event, __u32 marks)
{
	const __u32 both = FIRST_DONE | SECOND_DONE;

	return event->is_tcp && (marks & RESET || (marks & both) == both);
}

static __always_inline __u64 lifetime_ns(const struct event *event, __u32 marks)
{
	if (!event->is_tcp)
		return INSTANCE.timeout_ns;
	if (is_closed(event, marks))
		return INSTANCE.tcp_closed_ns;
	if (marks & (FIRST_DONE | SECOND_DONE))
		return INSTANCE.tcp_closing_ns;
	return marks & ACKNOWLEDGED ? INSTANCE.tcp_established_ns : INSTANCE.tcp_new_ns;
}

/* Returns the mark that a FIN of the packet's sender sets. */
static __always_inline __u32 done_mark(const struct event *event)
{
	return event->from_second ? SECOND_DONE : FIRST_DONE;
}

/* Returns the marks that the packet adds. */
static __always_inline __u32 added_marks(const struct event *event, __u32 marks)
{
	__u32 added = 0;

	if (event->from_second != (marks & OPENED_BY_SECOND))
		added |= ANSWERED;
	if (event->flags & TCP_RST)
		added |= RESET;
	if (event->flags & TCP_FIN)
		added |= done_mark(event);
	if ((event->flags & (TCP_ACK | TCP_SYN)) == TCP_ACK)
		added |= ACKNOWLEDGED;
	return added;
}

static __always_inline void count_packet(const hook_ctx *ctx, const struct event *event,
					 struct tracked *flow)
{
	__u32 end = event->from_second & 1;

	__sync_fetch_and_add(&flow->packets[end], hook_segments(ctx));
	__sync_fetch_and_add(&flow->bytes[end], hook_length(ctx));
}

/* Returns a new flow that counts its first packet. */
static __always_inline struct tracked new_flow(const hook_ctx *ctx, const struct event *event)
{
	struct tracked flow = {
		.first_ns = event->now_ns,
		.last_ns = event->now_ns,
		.marks = event->from_second ? OPENED_BY_SECOND : 0,
	};

	if (event->from_second) {
		flow.packets[1] = hook_segments(ctx);
		flow.bytes[1] = hook_length(ctx);
	} else {
		flow.packets[0] = hook_segments(ctx);
		flow.bytes[0] = hook_length(ctx);
	}
	return flow;
}

/* Returns whether the packet belongs to a flow or begins a flow. */
static __always_inline bool track_packet(const hook_ctx *ctx, const struct event *event,
					 struct flow_totals *totals)
{
	struct tracked *flow = bpf_map_lookup_elem(&flows, &event->key);

	if (!flow && opens_flow(event)) {
		struct tracked first = new_flow(ctx, event);

		if (bpf_map_update_elem(&flows, &event->key, &first, BPF_NOEXIST) == 0) {
			totals->inserted++;
			return true;
		}
		/* Another CPU may have inserted the flow first. */
		flow = bpf_map_lookup_elem(&flows, &event->key);
	}
	if (!flow)
		return false;

	__u32 marks = flow->marks;
	__u64 last_ns = flow->last_ns;
	bool closed = is_closed(event, marks);
	bool finished = closed || marks & done_mark(event);
	bool alive =
		event->now_ns <= last_ns || event->now_ns - last_ns <= lifetime_ns(event, marks);

	if (alive && !(finished && opens_flow(event))) {
		__u32 added = added_marks(event, marks) & ~marks;

		if (added)
			__sync_fetch_and_or(&flow->marks, added);
		count_packet(ctx, event, flow);
		/* Late segments do not keep a closed connection alive. */
		if (!closed && event->now_ns > last_ns)
			flow->last_ns = event->now_ns;
		return true;
	}
	if (!opens_flow(event))
		return false;

	struct tracked first = new_flow(ctx, event);

	if (bpf_map_update_elem(&flows, &event->key, &first, BPF_EXIST))
		return false;
	totals->replaced++;
	return true;
}

/* Returns whether the packet may continue. */
static __always_inline bool is_admitted(hook_ctx *ctx)
{
	__u32 zero = 0;
	struct flow_totals *totals = bpf_map_lookup_elem(&flow_totals, &zero);
	struct event event;

	if (!totals)
		return false;
	if (!read_event(ctx, &event)) {
		totals->untracked += hook_segments(ctx);
		return !INSTANCE.drops_invalid;
	}
	if (track_packet(ctx, &event, totals))
		return true;
	totals->untracked += hook_segments(ctx);
	/* A packet that opens a flow in a full table is not invalid. */
	return opens_flow(&event) || !INSTANCE.drops_invalid;
}

HOOK_SECTION
int myelin_flow_tracker(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);
	bool admitted = is_admitted(ctx);

	hop_leave(line, entered);
	return admitted ? hop_exit(ctx) : hop_drop(ctx, line);
}

char LICENSE[] SEC("license") = "GPL";
