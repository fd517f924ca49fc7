// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Source NAT with port translation. Follows the rules of myelin_functions::nat and
 * myelin_functions::nat::mappings, and chooses the same ports.
 *
 * There are two hash maps. `outward` maps the inside endpoint to the external endpoint and the
 * mapping's expiry time. `inward` maps the external endpoint to the inside endpoint. Rules for
 * several CPUs:
 *
 * - The CPU that inserts a port into `inward` gets the port, because the kernel lets only one of
 *   several insertions succeed.
 * - Only the CPU that changes the time of an expired mapping by compare-and-swap may renew or
 * remove the mapping. To remove the mapping, the CPU sets the time REMOVED. The port is free after
 * the removal from both maps.
 * - A port without a mapping in `outward` is not free, because another CPU takes or frees this
 * port.
 *
 * Errors of map operations are `int`: before Linux 6.4 the upper half of the `long` is undefined.
 */
#include "nat.h"
#include "nat_error.h"
#include "next.h"
#include "translated_fragments.h"

#define MAX_ADDRESSES 16

/* Same layout as myelin_kernel::nat::NatInstance. */
const volatile struct nat {
	struct hop hop;
	__u64 timeout_ns;
	__u64 tcp_timeout_ns;
	__u64 tcp_transitory_ns;
	__u32 reply; /* 0: translates outgoing packets; 1: translates incoming replies */
	__u32 first_port;
	__u32 port_count;
	__u32 count_v4;
	__u32 count_v6;
	__u32 sweeps_at_once; /* one packet sweeps the whole table */
	__u32 v4[MAX_ADDRESSES][4];
	__u32 v6[MAX_ADDRESSES][4];
} INSTANCE INSTANCE_SECTION;

/* Same layout as myelin_kernel::nat::Mapping. */
struct mapping {
	__u64 expires_ns;
	struct endpoint outer;
	__u32 closing; /* 1 after a FIN or RST from inside, until a SYN from inside */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, struct mapping);
	__uint(max_entries, 1);
} outward SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, struct endpoint);
	__uint(max_entries, 1);
} inward SEC(".maps");

/* State of the sweep of a full table. Same layout as myelin_kernel::nat::Sweep. */
struct sweep {
	__u64 next_ns; /* earliest start of the next sweep, CLOCK_MONOTONIC */
	__u64 swept;   /* external endpoints checked by the current sweep; 0: no sweep */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct sweep);
	__uint(max_entries, 1);
} sweeps SEC(".maps");

/* Number of ports to try after the inside port. */
#define PORT_TRIES 128

#define SWEEP_EVERY_NS 1000000000ULL
/* External endpoints that one packet checks, so that no packet waits for a sweep of a large table.
 */
#define SWEEP_STEP 1024
/* UDP, TCP, and the echoes of one address family. */
#define PROTOCOLS 3

/* Expiry time of a mapping that a CPU is removing. */
#define REMOVED 0

/* Removes an expired mapping and its port. Returns false if another CPU removes or renews the
 * mapping. */
static __always_inline bool remove_expired(struct mapping *mapping, const struct endpoint *inner,
					   __u64 now)
{
	struct endpoint outer = mapping->outer;
	__u64 seen = mapping->expires_ns;

	if (seen == REMOVED || now < seen ||
	    __sync_val_compare_and_swap(&mapping->expires_ns, seen, REMOVED) != seen)
		return false;
	bpf_map_delete_elem(&outward, inner);
	bpf_map_delete_elem(&inward, &outer);
	return true;
}

/*
 * One packet sweeps a small table at once. A program cannot iterate over a hash map in pieces. So
 * for a large table each new flow looks up the next SWEEP_STEP external endpoints.
 */
static long remove_mapping_if_expired(void *map, const struct endpoint *inner,
				      struct mapping *mapping, __u64 *now)
{
	struct endpoint key = *inner;

	remove_expired(mapping, &key, *now);
	return 0;
}

/* The part of a sweep that one packet executes. */
struct sweep_step {
	__u64 from; /* number of the first external endpoint */
	__u64 now;
};

/* Writes the n-th external endpoint. Returns false beyond the last endpoint. */
static __always_inline bool write_nth_endpoint(__u64 n, struct endpoint *outer)
{
	__u64 port = n / PROTOCOLS, address = port / INSTANCE.port_count;
	bool v6 = address >= INSTANCE.count_v4;
	__u32 index = v6 ? address - INSTANCE.count_v4 : address;

	if (v6 && index >= INSTANCE.count_v6)
		return false;
	index %= MAX_ADDRESSES;
#pragma unroll
	for (int i = 0; i < 4; i++)
		outer->address[i] = v6 ? INSTANCE.v6[index][i] : INSTANCE.v4[index][i];
	outer->port = INSTANCE.first_port + port % INSTANCE.port_count;
	outer->is_ipv6 = v6;
	switch (n % PROTOCOLS) {
	case 0:
		outer->protocol = IPPROTO_UDP;
		break;
	case 1:
		outer->protocol = IPPROTO_TCP;
		break;
	default:
		outer->protocol = v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
	}
	return true;
}

/* Checks one external endpoint. Returns 1 to end the sweep. */
static long sweep_endpoint(__u32 n, struct sweep_step *step)
{
	struct endpoint outer = {};

	if (!write_nth_endpoint(step->from + n, &outer))
		return 1;

	const struct endpoint *found = bpf_map_lookup_elem(&inward, &outer);

	if (!found)
		return 0;

	struct endpoint holder = *found;
	struct mapping *mapping = bpf_map_lookup_elem(&outward, &holder);

	if (mapping && is_same_endpoint(&mapping->outer, &outer))
		remove_expired(mapping, &holder, step->now);
	return 0;
}

/* Removes expired mappings in the next step of the sweep. Returns whether the table may have room
 * now. */
static __noinline bool sweep_mappings(__u64 now)
{
	__u32 zero = 0;
	struct sweep *sweep = bpf_map_lookup_elem(&sweeps, &zero);

	if (!sweep)
		return false;

	struct sweep_step step = {.from = sweep->swept, .now = now};

	if (!step.from) {
		__u64 seen = sweep->next_ns;

		if (now < seen || __sync_val_compare_and_swap(&sweep->next_ns, seen,
							      now + SWEEP_EVERY_NS) != seen)
			return false;
	}
	if (INSTANCE.sweeps_at_once) {
		bpf_for_each_map_elem(&outward, remove_mapping_if_expired, &now, 0);
		return true;
	}

	long checked = bpf_loop(SWEEP_STEP, sweep_endpoint, &step, 0);

	__sync_val_compare_and_swap(&sweep->swept, step.from,
				    checked < SWEEP_STEP ? 0 : step.from + SWEEP_STEP);
	return true;
}

/* A search for a free port. */
struct search {
	struct endpoint inner;
	struct endpoint outer;
	__u64 now;
	__u32 start;
	__u32 step;
	bool found;
	bool full; /* the search ended because the table is full */
};

enum claim_result {
	CLAIMED,
	TAKEN,
	NO_ROOM,
};

/* Takes the port in `search->outer` if it is free. */
static __always_inline enum claim_result claim_port(struct search *search)
{
	int error = bpf_map_update_elem(&inward, &search->outer, &search->inner, BPF_NOEXIST);

	if (error == -EEXIST) {
		const struct endpoint *found = bpf_map_lookup_elem(&inward, &search->outer);

		if (!found)
			return TAKEN;

		struct endpoint holder = *found;
		struct mapping *mapping = bpf_map_lookup_elem(&outward, &holder);

		if (!mapping || !is_same_endpoint(&mapping->outer, &search->outer) ||
		    !remove_expired(mapping, &holder, search->now))
			return TAKEN;
	} else {
		search->full = error == -E2BIG;
		return error ? NO_ROOM : CLAIMED;
	}
	/* The removal freed the port, but another CPU may have taken the port first. */
	error = bpf_map_update_elem(&inward, &search->outer, &search->inner, BPF_NOEXIST);
	if (!error)
		return CLAIMED;
	return error == -EEXIST ? TAKEN : NO_ROOM;
}

/* Tries a port. Returns 1 to end the search. */
static __always_inline long try_offset(struct search *search, __u32 offset)
{
	search->outer.port = INSTANCE.first_port + offset;

	enum claim_result result = claim_port(search);

	search->found = result == CLAIMED;
	return result != TAKEN;
}

static long try_nth_port(__u32 n, struct search *search)
{
	return try_offset(search, (search->start + n * search->step) % INSTANCE.port_count);
}

/* Finds a free external endpoint for `search->inner`. */
static __noinline bool find_free(struct search *search)
{
	__u32 address_hash = endpoint_address_hash(&search->inner);
	__u32 hash = endpoint_hash(&search->inner, address_hash);
	bool v6 = search->inner.is_ipv6;
	__u32 count = v6 ? INSTANCE.count_v6 : INSTANCE.count_v4;

	if (!count)
		return false;

	__u32 index = address_hash % count % MAX_ADDRESSES;
	__u32 offset = search->inner.port - INSTANCE.first_port;
	__u32 stride = INSTANCE.port_count / PORT_TRIES;

#pragma unroll
	for (int i = 0; i < 4; i++)
		search->outer.address[i] = v6 ? INSTANCE.v6[index][i] : INSTANCE.v4[index][i];
	search->outer.protocol = search->inner.protocol;
	search->outer.is_ipv6 = search->inner.is_ipv6;
	search->start = hash % INSTANCE.port_count;
	search->step = 1 + (hash >> 16) % (stride ? stride : 1);
	if (offset < INSTANCE.port_count && try_offset(search, offset))
		return search->found;
	bpf_loop(INSTANCE.port_count < PORT_TRIES ? INSTANCE.port_count : PORT_TRIES, try_nth_port,
		 search, 0);
	return search->found;
}

/* Creates a mapping for an inside endpoint. */
static __noinline bool allocate_mapping(const struct endpoint *inner, __u64 now, __u64 expires,
					__u32 closing, struct endpoint *outer)
{
	struct search search = {.inner = *inner, .now = now};

	/* Call the sweep here and not in find_free, because older kernels limit all nested calls
	 * together to 512 bytes of stack. */
	if (!find_free(&search) && !(search.full && sweep_mappings(now) && find_free(&search)))
		return false;

	struct mapping mapping = {
		.expires_ns = expires,
		.outer = search.outer,
		.closing = closing,
	};
	int error = bpf_map_update_elem(&outward, inner, &mapping, BPF_NOEXIST);

	*outer = search.outer;
	if (!error)
		return true;
	bpf_map_delete_elem(&inward, &search.outer);
	if (error != -EEXIST)
		return false;

	/* Another CPU inserted the mapping first, for another packet of the flow. */
	const struct mapping *winner = bpf_map_lookup_elem(&outward, inner);

	if (!winner)
		return false;
	*outer = winner->outer;
	return true;
}

/*
 * Renews a mapping. Returns false if a CPU is removing the mapping. The stamps of two CPUs differ,
 * so at the time of expiry one CPU may renew a mapping that another CPU removes. The packet of the
 * first CPU then leaves with the old port, and the next packet of its flow gets a new mapping.
 */
static __always_inline bool renew_mapping(struct mapping *mapping, __u64 now, __u64 expires)
{
	__u64 seen = mapping->expires_ns;

	if (now < seen) {
		mapping->expires_ns = expires;
		return true;
	}
	return seen != REMOVED &&
	       __sync_val_compare_and_swap(&mapping->expires_ns, seen, expires) == seen;
}

static __always_inline __u64 lifetime_ns(const struct nat_packet *packet, bool closing)
{
	if (packet->old.protocol != IPPROTO_TCP)
		return INSTANCE.timeout_ns;
	return closing || packet->opens ? INSTANCE.tcp_transitory_ns : INSTANCE.tcp_timeout_ns;
}

static __always_inline bool translate_outward(const struct nat_packet *packet, __u64 now,
					      struct endpoint *outer)
{
	struct mapping *mapping = bpf_map_lookup_elem(&outward, &packet->old);
	bool was_closing = mapping && mapping->closing;
	bool closing = packet->closes || (was_closing && !packet->opens);
	__u64 expires = now + lifetime_ns(packet, closing);

	if (!mapping)
		return allocate_mapping(&packet->old, now, expires, closing, outer);
	if (!renew_mapping(mapping, now, expires))
		return false;
	if (closing != was_closing)
		mapping->closing = closing;
	*outer = mapping->outer;
	return true;
}

static __always_inline bool translate_inward(const struct endpoint *outer, __u64 now,
					     struct endpoint *inner)
{
	const struct endpoint *found = bpf_map_lookup_elem(&inward, outer);

	if (!found)
		return false;
	*inner = *found;

	const struct mapping *mapping = bpf_map_lookup_elem(&outward, inner);

	return mapping && is_same_endpoint(&mapping->outer, outer) && now < mapping->expires_ns;
}

/* Finds the external endpoint of a live mapping, without a change of the mapping. */
static __always_inline bool find_outer(const struct endpoint *inner, __u64 now,
				       struct endpoint *outer)
{
	const struct mapping *mapping = bpf_map_lookup_elem(&outward, inner);

	if (!mapping || now >= mapping->expires_ns)
		return false;
	*outer = mapping->outer;
	return true;
}

/* Makes and refreshes no mapping (RFC 5508, REQ-6). */
static __always_inline bool translate_quote(hook_ctx *ctx, struct quoted_endpoint *fields)
{
	struct endpoint new = {};
	__u64 now;

	if (!hook_stamp(ctx, &now) || !find_quoted_endpoint(ctx, INSTANCE.reply, fields))
		return false;

	bool found = INSTANCE.reply ? translate_inward(&fields->old, now, &new)
				    : find_outer(&fields->old, now, &new);

	return found && write_quoted_endpoint(ctx, fields, &new);
}

/*
 * Translates an ICMP error about a packet of a live mapping. Counts an error that it does not
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

static __always_inline bool translate_packet(hook_ctx *ctx)
{
	struct nat_packet packet = {};
	struct endpoint new = {};
	__u64 now;

	if (!hook_stamp(ctx, &now))
		return false;
	if (!nat_read(ctx, INSTANCE.reply, &packet))
		return is_fragment(ctx) ? translate_later_fragment(ctx, INSTANCE.reply)
					: translate_error(ctx);

	bool translated = INSTANCE.reply ? translate_inward(&packet.old, now, &new)
					 : translate_outward(&packet, now, &new);

	if (!translated || !nat_write(ctx, INSTANCE.reply, &packet, &new))
		return false;
	return !packet.is_fragment || remember_translation(ctx, INSTANCE.reply, &packet.old, NULL);
}

HOOK_SECTION
int myelin_nat(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);

	if (!translate_packet(ctx))
		return hop_drop(ctx, line);
	hop_leave(line, entered);
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
