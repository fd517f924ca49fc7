// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Receives the frames of chains over several nodes, at the interface that leads to the neighbours.
 * Sends a frame over an internal link to the front door of its part (door.bpf.c), which removes the
 * headers. Drops and counts all other frames with NSH. tc only.
 */
#include "wire.h"
#include "counters.h"

/* Counter lines of an interface; same order as in myelin_kernel::wire. */
enum wire_line {
	WIRE_MALFORMED = 0,
	WIRE_UNKNOWN = 1, /* no part with this path and index */
	WIRE_FOREIGN = 2, /* not from the part's neighbour */
	WIRE_EXPIRED = 3, /* the time to live ended */
};

/* Same layout as myelin_kernel::wire::WireInInstance. */
const volatile struct wire_in {
	struct counting counting;
	__u32 line;   /* the interface's first counter line */
	__u32 kernel; /* whose clock takes the stamps */
} INSTANCE INSTANCE_SECTION;

/* How frames arrive from a neighbour. Same values as myelin_kernel::wire::Family. */
enum family {
	FAMILY_ETHERNET = 0,
	FAMILY_IPV4 = 4,
	FAMILY_IPV6 = 6,
};

/* A frame to this interface, and one to another station; see linux/if_packet.h. */
#define PACKET_HOST	 0
#define PACKET_OTHERHOST 3

/* The part of a path, and its neighbour. Same layout as myelin_kernel::wire::PartEntry. */
struct part {
	__u32 near; /* near end of the internal link to the front door */
	__u32 ttl;  /* number of the cell in `ttls` */
	__u32 family;
	__be32 vni; /* as in the header */
	__be32 remote[4];
	__be32 local[4];
	__u8 mac[6];
	__u16 padding;
	__u32 line; /* two counter lines: frames, and those with a stamp of this kernel */
};

/* The key is path identifier << 8 | service index. */
#define USER_PORT 0 /* a key that no part has: users are behind the interface */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct part);
	__uint(max_entries, 1);
} parts SEC(".maps");

/*
 * The time to live with which the frames of a part leave this node. All frames of a path pass the
 * same nodes, so a cell changes when the path does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} ttls SEC(".maps");

static __always_inline int drop_and_count(const hook_ctx *ctx, enum wire_line line)
{
	struct myelin_line *counters = counter_line(IMMEDIATE(line) + line);

	counters->packets++;
	counters->bytes += hook_length(ctx);
	return HOOK_DROP;
}

/* Returns `size` bytes from the start of the packet, or NULL. */
static __always_inline const void *frame(hook_ctx *ctx, __u32 size)
{
	if (!hook_pull(ctx, size) || (void *)(long)ctx->data + size > (void *)(long)ctx->data_end)
		return NULL;
	return (void *)(long)ctx->data;
}

/* Whether a packet of IP is a datagram to the port of VXLAN. */
static __always_inline bool is_vxlan(hook_ctx *ctx, __u32 family)
{
	if (family == FAMILY_IPV4) {
		const struct tunnel4 *outer = frame(ctx, offsetof(struct tunnel4, vxlan.udp.len));

		/* Not a fragment: neither "more fragments" nor an offset. */
		return outer && outer->ip.version == 4 && outer->ip.ihl == 5 &&
		       outer->ip.protocol == IPPROTO_UDP &&
		       !(outer->ip.frag_off & bpf_htons(0x3fff)) &&
		       outer->vxlan.udp.dest == bpf_htons(VXLAN_PORT);
	}

	const struct tunnel6 *outer = frame(ctx, offsetof(struct tunnel6, vxlan.udp.len));

	return outer && outer->ip.version == 6 && outer->ip.nexthdr == IPPROTO_UDP &&
	       outer->vxlan.udp.dest == bpf_htons(VXLAN_PORT);
}

/* Whether the lengths of the outer headers fit the frame. */
static __always_inline bool has_whole_tunnel(const hook_ctx *ctx, const void *data, __u32 family)
{
	const struct vxlan *vxlan;
	__u32 end, datagram;

	if (family == FAMILY_IPV4) {
		const struct tunnel4 *outer = data;

		end = sizeof(struct ethhdr) + bpf_ntohs(outer->ip.tot_len);
		datagram = bpf_ntohs(outer->ip.tot_len) - (__u32)sizeof(struct iphdr);
		vxlan = &outer->vxlan;
	} else {
		const struct tunnel6 *outer = data;

		end = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) +
		      bpf_ntohs(outer->ip.payload_len);
		datagram = bpf_ntohs(outer->ip.payload_len);
		vxlan = &outer->vxlan;
	}
	return end <= ctx->len && bpf_ntohs(vxlan->udp.len) == datagram &&
	       datagram >= sizeof(struct vxlan) + sizeof(struct encapsulation) &&
	       (vxlan->flags & bpf_htonl(VXLAN_FLAGS));
}

static __always_inline bool is_equal(const __be32 *left, const __be32 *right)
{
	return left[0] == right[0] && left[1] == right[1] && left[2] == right[2] &&
	       left[3] == right[3];
}

/* The last byte is reserved, and ignored. */
static __always_inline bool is_same_vni(__be32 left, __be32 right)
{
	return !((left ^ right) & bpf_htonl(0xffffff00));
}

/* Whether the frame comes from the part's neighbour. */
static __always_inline bool is_from_neighbour(const hook_ctx *ctx, const void *data, __u32 family,
					      const struct part *part)
{
	if (family != part->family || ctx->vlan_present || ctx->pkt_type != PACKET_HOST)
		return false;
	if (family == FAMILY_ETHERNET) {
		const struct ethhdr *ethernet = data;
		const __u16 *source = (const void *)ethernet->h_source;
		const __u16 *mac = (const void *)part->mac;

		return source[0] == mac[0] && source[1] == mac[1] && source[2] == mac[2];
	}
	if (family == FAMILY_IPV4) {
		const struct tunnel4 *outer = data;

		return outer->ip.saddr == part->remote[0] && outer->ip.daddr == part->local[0] &&
		       is_same_vni(outer->vxlan.vni, part->vni);
	}

	const struct tunnel6 *outer = data;

	return is_equal(outer->ip.saddr.in6_u.u6_addr32, part->remote) &&
	       is_equal(outer->ip.daddr.in6_u.u6_addr32, part->local) &&
	       is_same_vni(outer->vxlan.vni, part->vni);
}

/* Receives a frame whose NSH header begins behind `tunnel` bytes. `family` and `tunnel` are
 * constants, so the verifier knows all offsets. */
static __always_inline int receive(hook_ctx *ctx, __u32 family, __u32 tunnel)
{
	const void *data = frame(ctx, tunnel + sizeof(struct encapsulation));
	const struct encapsulation *nsh = data + tunnel;

	if (family != FAMILY_ETHERNET) {
		/* A tunnel without NSH belongs to another program. */
		if (!data || nsh->ethernet.h_proto != bpf_htons(ETH_P_NSH))
			return HOOK_PASS;
		if (!has_whole_tunnel(ctx, data, family))
			return drop_and_count(ctx, WIRE_MALFORMED);
	}
	if (!data)
		return drop_and_count(ctx, WIRE_MALFORMED);

	__u32 base = bpf_ntohl(nsh->base), path = bpf_ntohl(nsh->path);

	if ((base & NSH_BASE_MASK) != NSH_BASE)
		return drop_and_count(ctx, WIRE_MALFORMED);

	const struct part *part = bpf_map_lookup_elem(&parts, &path);

	if (!part)
		return drop_and_count(ctx, WIRE_UNKNOWN);
	if (!is_from_neighbour(ctx, data, family, part))
		return drop_and_count(ctx, WIRE_FOREIGN);

	/* RFC 8300, section 2.2: 0 counts down to 63, and a frame at 0 goes no further. */
	__u32 ttl = (((base & NSH_TTL_MASK) >> 22) - 1) & 63;

	if (!ttl)
		return drop_and_count(ctx, WIRE_EXPIRED);

	__u32 *cell = bpf_map_lookup_elem(&ttls, &part->ttl);

	if (cell && *cell != ttl)
		*cell = ttl;
	struct myelin_line *line = counter_line_of(part->line);

	line->packets++;
	line->bytes += hook_length(ctx);
	if (IMMEDIATE(kernel) && nsh->kernel == bpf_htonl(IMMEDIATE(kernel)))
		counter_line_of(part->line + 1)->packets++;
	return bpf_redirect(part->near, 0);
}

/* Whether the frame has NSH behind `tunnel` bytes of headers. `tunnel` is a constant. */
static __always_inline bool has_nsh_behind(hook_ctx *ctx, __u32 tunnel)
{
	const void *data = frame(ctx, tunnel + sizeof(struct encapsulation));
	const struct encapsulation *nsh = data + tunnel;

	return data && nsh->ethernet.h_proto == bpf_htons(ETH_P_NSH);
}

static __always_inline bool has_nsh(hook_ctx *ctx)
{
	__u32 protocol = ctx->protocol;

	if (protocol == bpf_htons(ETH_P_IP) && is_vxlan(ctx, FAMILY_IPV4))
		return has_nsh_behind(ctx, sizeof(struct tunnel4));
	if (protocol == bpf_htons(ETH_P_IPV6) && is_vxlan(ctx, FAMILY_IPV6))
		return has_nsh_behind(ctx, sizeof(struct tunnel6));
	return protocol == bpf_htons(ETH_P_NSH);
}

/* A frame to another station: a bridge of this node may forward it to another node or to the
 * node itself, but never for users, who could forge frames of the neighbour. */
static __always_inline int pass_on(hook_ctx *ctx)
{
	__u32 user_port = USER_PORT;

	if (bpf_map_lookup_elem(&parts, &user_port) && has_nsh(ctx))
		return drop_and_count(ctx, WIRE_UNKNOWN);
	return HOOK_PASS;
}

HOOK_SECTION
int myelin_wire_in(hook_ctx *ctx)
{
	__u32 protocol = ctx->protocol;

	if (ctx->pkt_type == PACKET_OTHERHOST)
		return pass_on(ctx);
	if (protocol == bpf_htons(ETH_P_NSH))
		return receive(ctx, FAMILY_ETHERNET, 0);
	if (protocol == bpf_htons(ETH_P_IP) && is_vxlan(ctx, FAMILY_IPV4))
		return receive(ctx, FAMILY_IPV4, sizeof(struct tunnel4));
	if (protocol == bpf_htons(ETH_P_IPV6) && is_vxlan(ctx, FAMILY_IPV6))
		return receive(ctx, FAMILY_IPV6, sizeof(struct tunnel6));
	return HOOK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
