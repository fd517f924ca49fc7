// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Distributes flows over backends by Maglev hashing, and keeps each flow at its backend. Follows
 * the rules of myelin_functions::load_balancer and chooses the same backends.
 *
 * There are two LRU tables: `flows` by the key of client packets, `replies` by the key of backend
 * packets. The kernel evicts entries of each table independently. So a flow rewrites its entry in
 * `replies` once a second.
 */
#include "flow_totals.h"
#include "maglev.h"
#include "nat.h"
#include "nat_error.h"
#include "next.h"
#include "translated_fragments.h"

#define CONFIRM_NS 1000000000ULL

/* Same layout as myelin_packet::maglev::Backend. */
struct backend {
	__u32 address[4];
	__u8 mac[6];
	__u8 has_mac;
	__u8 is_ipv6;
};

/* Same layout as myelin_kernel::load_balancer::BackendKey. */
struct backend_key {
	__u32 address[4];
	__u32 is_ipv6;
};

/*
 * State of a flow. The counters are for reports only, because they may miss one of two packets that
 * two CPUs handle at the same time. Same layout as myelin_kernel::flows::BalancedFlow.
 */
struct flow {
	__u32 address[4]; /* the backend's address */
	__u64 packets;
	__u64 bytes;
	__u64 first_ns;
	__u64 last_ns;
	__u64 confirmed_ns; /* time of the last write to the flow's entry in `replies` */
	__u32 backend;	    /* the backend's number in the configuration at the last use */
	__u32 padding;
};

/* State of the replies of a flow. */
struct reply {
	__u32 address[4]; /* the client's original destination */
	__u64 last_ns;
};

/* Same layout as myelin_kernel::load_balancer::LoadBalancerInstance. */
const volatile struct load_balancer {
	struct hop hop;
	__u64 timeout_ns;
	__u32 reply; /* 0: translates requests to backends; 1: translates replies of backends */
	__u32 padding;
} INSTANCE INSTANCE_SECTION;

/* The loader sets the numbers of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(max_entries, 1);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct reply);
	__uint(max_entries, 1);
} replies SEC(".maps");

/* The first element is for IPv4, the second for IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct table);
	__uint(max_entries, 2);
} maglev SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backend);
	__uint(max_entries, 1);
} backends SEC(".maps");

/* Maps the address of a backend to the backend's number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct backend_key);
	__type(value, __u32);
	__uint(max_entries, 1);
} numbers SEC(".maps");

static __always_inline bool is_alive(__u64 now, __u64 last)
{
	return now <= last || now - last <= INSTANCE.timeout_ns;
}

static __always_inline bool is_same_address(const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* Writes a flow's entry in `replies`. Returns false if the replies would match another flow. */
static __noinline bool write_reply_entry(const struct flow_key *key, const struct backend *backend,
					 __u64 now)
{
	if (!key || !backend)
		return false;

	struct flow_key answers = {
		.source_port = key->destination_port,
		.destination_port = key->source_port,
		.protocol = key->protocol,
		.flags = key->flags,
	};
	struct reply reply = {.last_ns = now};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		answers.source[i] = backend->address[i];
		answers.destination[i] = key->source[i];
		reply.address[i] = key->destination[i];
	}

	const struct reply *present = bpf_map_lookup_elem(&replies, &answers);

	if (!present) {
		/* Before Linux 6.4 the upper half of a `long` is undefined. */
		int error = bpf_map_update_elem(&replies, &answers, &reply, BPF_NOEXIST);

		if (error != -EEXIST)
			return !error;
		/* Another CPU inserted the entry first, perhaps for another flow. */
		present = bpf_map_lookup_elem(&replies, &answers);
	}
	if (present && !is_same_address(present->address, reply.address) &&
	    is_alive(now, present->last_ns))
		return false;
	return !bpf_map_update_elem(&replies, &answers, &reply, BPF_ANY);
}

/* Returns the backend of a flow; NULL if the backend no longer exists. */
static __always_inline const struct backend *find_backend(struct flow *flow, bool is_ipv6)
{
	__u32 number = flow->backend;
	const struct backend *backend = bpf_map_lookup_elem(&backends, &number);

	if (backend && is_same_address(backend->address, flow->address) &&
	    backend->is_ipv6 == is_ipv6)
		return backend;

	/* The configuration has changed. */
	struct backend_key backend_key = {.is_ipv6 = is_ipv6};

	__builtin_memcpy(backend_key.address, flow->address, sizeof(backend_key.address));

	const __u32 *found = bpf_map_lookup_elem(&numbers, &backend_key);

	if (!found)
		return NULL;
	number = *found;
	flow->backend = number;
	return bpf_map_lookup_elem(&backends, &number);
}

/* Inserts a new flow. With `replaces`, the table has an old entry with this key. */
static __always_inline void insert_flow(const struct flow_key *key, const struct flow *flow,
					bool replaces)
{
	__u32 zero = 0;
	struct flow_totals *totals = bpf_map_lookup_elem(&flow_totals, &zero);
	/* The update fails if another CPU inserted the flow first, with the same backend. */
	bool added = !bpf_map_update_elem(&flows, key, flow, replaces ? BPF_ANY : BPF_NOEXIST);

	if (!totals || !added)
		return;
	if (replaces)
		totals->replaced++;
	else
		totals->inserted++;
}

/* Chooses a backend for a flow without a backend. With `replaces`, the table has an old entry. */
static __always_inline const struct backend *
assign_backend(hook_ctx *ctx, const struct flow_key *key, bool is_ipv6, __u64 now, bool replaces)
{
	__u32 family = is_ipv6;
	const struct table *table = bpf_map_lookup_elem(&maglev, &family);

	if (!table)
		return NULL;

	__u32 number = find_backend_number(table, key);

	if (number == NO_BACKEND)
		return NULL;

	const struct backend *backend = bpf_map_lookup_elem(&backends, &number);

	if (!backend || !write_reply_entry(key, backend, now))
		return NULL;

	struct flow flow = {
		.packets = hook_segments(ctx),
		.bytes = hook_length(ctx),
		.first_ns = now,
		.last_ns = now,
		.confirmed_ns = now,
		.backend = number,
	};

	__builtin_memcpy(flow.address, backend->address, sizeof(flow.address));
	insert_flow(key, &flow, replaces);
	return backend;
}

static __always_inline const struct backend *choose_backend(hook_ctx *ctx,
							    const struct flow_key *key, __u64 now)
{
	bool is_ipv6 = key->flags & FLAG_IPV6;
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	const struct backend *backend =
		flow && is_alive(now, flow->last_ns) ? find_backend(flow, is_ipv6) : NULL;

	if (!backend)
		return assign_backend(ctx, key, is_ipv6, now, flow);
	if (now > flow->confirmed_ns && now - flow->confirmed_ns >= CONFIRM_NS) {
		if (!write_reply_entry(key, backend, now))
			return NULL;
		flow->confirmed_ns = now;
	}
	flow->packets += hook_segments(ctx);
	flow->bytes += hook_length(ctx);
	flow->last_ns = now;
	return backend;
}

/* Writes the backend's MAC address, if the configuration has one. */
static __always_inline bool write_mac(hook_ctx *ctx, const struct backend *backend)
{
	void *data = (void *)(long)ctx->data;

	if (!backend->has_mac)
		return true;
	if (data + sizeof(backend->mac) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(data, backend->mac, sizeof(backend->mac));
	return true;
}

static __always_inline bool translate_request(hook_ctx *ctx, const struct flow_key *key,
					      const struct nat_packet *packet, __u64 now)
{
	const struct backend *backend = choose_backend(ctx, key, now);
	struct endpoint new = packet->old;

	if (!backend)
		return false;
	__builtin_memcpy(new.address, backend->address, sizeof(new.address));
	if (!nat_write(ctx, true, packet, &new) || !write_mac(ctx, backend))
		return false;
	return !packet->is_fragment || remember_translation(ctx, true, &packet->old,
							    backend->has_mac ? backend->mac : NULL);
}

static __always_inline bool translate_reply(hook_ctx *ctx, const struct flow_key *key,
					    const struct nat_packet *packet, __u64 now)
{
	struct reply *reply = bpf_map_lookup_elem(&replies, key);
	struct endpoint new = packet->old;

	if (!reply || !is_alive(now, reply->last_ns))
		return false;
	reply->last_ns = now;
	__builtin_memcpy(new.address, reply->address, sizeof(new.address));
	return nat_write(ctx, false, packet, &new) &&
	       (!packet->is_fragment || remember_translation(ctx, false, &packet->old, NULL));
}

/* Finds the backend of a live flow; else NULL. Refreshes no flow. */
static __always_inline const struct backend *find_flow_backend(const struct flow_key *key,
							       __u64 now)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);

	if (!flow || !is_alive(now, flow->last_ns))
		return NULL;
	return find_backend(flow, key->flags & FLAG_IPV6);
}

/* Writes the key of the flow's packets that this side translates: the reverse of the quoted key. */
static __always_inline bool read_quoted_flow(hook_ctx *ctx, const struct icmp_quote *quote,
					     struct flow_key *key)
{
	key->protocol = quote->protocol;
	key->flags = FLAG_PORTS | (quote->is_ipv6 ? FLAG_IPV6 : 0);
	return quote_has_ports(quote) &&
	       read_address(ctx, quoted_source(quote), quote->is_ipv6, key->destination) &&
	       read_address(ctx, quoted_destination(quote), quote->is_ipv6, key->source) &&
	       read_field16(ctx, quote->l4, &key->destination_port) &&
	       read_field16(ctx, quote->l4 + 2, &key->source_port);
}

/* Makes and refreshes no flow. */
static __always_inline bool translate_quote(hook_ctx *ctx, struct quoted_endpoint *fields)
{
	struct flow_key key = {};
	struct endpoint new;
	__u64 now;

	if (!hook_stamp(ctx, &now) || !find_quoted_endpoint(ctx, !INSTANCE.reply, fields) ||
	    !read_quoted_flow(ctx, &fields->quote, &key))
		return false;
	new = fields->old;
	if (INSTANCE.reply) {
		const struct reply *reply = bpf_map_lookup_elem(&replies, &key);

		if (!reply || !is_alive(now, reply->last_ns))
			return false;
		__builtin_memcpy(new.address, reply->address, sizeof(new.address));
		return write_quoted_endpoint(ctx, fields, &new);
	}

	const struct backend *backend = find_flow_backend(&key, now);

	if (!backend)
		return false;
	__builtin_memcpy(new.address, backend->address, sizeof(new.address));
	return write_quoted_endpoint(ctx, fields, &new) && write_mac(ctx, backend);
}

/*
 * Translates an ICMP error about a packet of a live flow. Counts an error that it does not
 * translate. This is a global function, because the verifier checks a global function only once.
 */
__noinline int translate_error(hook_ctx *ctx)
{
	struct quoted_endpoint fields = {};

	if (!find_icmp_error(ctx, &fields.quote))
		return false;
	if (translate_quote(ctx, &fields))
		return true;
	counter_line(HOP(line))->policed += hook_segments(ctx);
	return false;
}

static __always_inline bool balance_packet(hook_ctx *ctx)
{
	struct nat_packet packet = {};
	struct headers headers;
	struct flow_key key;
	__u64 now;

	if (!hook_stamp(ctx, &now) || !hook_headers(ctx, &headers))
		return false;
	if (!(headers.flags & (FLAG_PORTS | FLAG_FRAGMENT)))
		return translate_error(ctx);
	if (!nat_read(ctx, !INSTANCE.reply, &packet))
		return headers.flags & FLAG_FRAGMENT &&
		       translate_later_fragment(ctx, !INSTANCE.reply);
	if (packet.is_fragment && !treat_first_as_whole(ctx, &headers, packet.old.protocol))
		return false;
	if (!(headers.flags & FLAG_PORTS) || !read_flow_key(ctx, &headers, &key))
		return false;
	return INSTANCE.reply ? translate_reply(ctx, &key, &packet, now)
			      : translate_request(ctx, &key, &packet, now);
}

HOOK_SECTION
int myelin_load_balancer(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);
	bool translated = balance_packet(ctx);

	hop_leave(line, entered);
	return translated ? hop_exit(ctx) : hop_drop(ctx, line);
}

char LICENSE[] SEC("license") = "GPL";
