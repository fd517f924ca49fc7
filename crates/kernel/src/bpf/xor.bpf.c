// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * XORs every byte of the UDP or TCP payload with a key and corrects the checksum in the same pass.
 *
 * A word w becomes w ^ K. The word grows by K - 2 * (w & K) in every bit and so in every 16-bit
 * lane. So the checksum's sum grows by n * K - 2 * sum(w & K). All sums are in native byte order;
 * ones' complement sums are equivalent in both orders (RFC 1071, section 2B).
 *
 * Drops a packet that the program cannot transform: a packet without UDP and TCP, a fragment, a
 * payload above MAX_PAYLOAD, a GSO skb (whose segments do not have checksums yet).
 */
#include <linux/tcp.h>
#include <linux/udp.h>

#include "protocol.h"
#include "next.h"

/* Longest payload in bytes; every payload within an MTU of 1500 is shorter. */
#define MAX_PAYLOAD 1500
#define BLOCK	    64
#define MAX_BLOCKS  (MAX_PAYLOAD / BLOCK)

const volatile struct xor {
	struct hop hop;
	__u64 key; /* the key byte in all eight bytes */
} INSTANCE INSTANCE_SECTION;

/*
 * Sums of the payload bits that the key selects, with the fewest instructions: the sum of the
 * 64-bit words, which loses carries, and the sum of the words' upper halves. The difference is the
 * sum of the lower halves.
 */
struct selected_sums {
	__u64 words;
	__u64 upper;
};

static __always_inline __u64 total_sum(const struct selected_sums *sums)
{
	__u64 lower = sums->words - (sums->upper << 32);

	return sums->upper + lower;
}

static __always_inline void add_selected(struct selected_sums *sums, __u64 bits)
{
	sums->words += bits;
	sums->upper += bits >> 32;
}

/* Adds two words. Adds both words at once if no sum of two bytes can carry into the next lane. */
static __always_inline void add_two_selected(struct selected_sums *sums, __u64 key, __u64 first,
					     __u64 second)
{
	if (key & 0x80) {
		add_selected(sums, first);
		add_selected(sums, second);
	} else {
		add_selected(sums, first + second);
	}
}

/* Transforms the word at `at`. Returns the bits of the word that the key selects. */
#define XOR(type, at, key)                       \
	({                                       \
		type *word = (void *)(at);       \
		type bits = *word & (type)(key); \
		*word ^= (type)(key);            \
		bits;                            \
	})

#define XOR_TWO(at, key, sums) \
	add_two_selected(&(sums), key, XOR(__u64, at, key), XOR(__u64, (at) + 8, key))

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

/* Returns the byte of `key` for the last byte of an odd length, at that byte's place in a word. */
static __always_inline __u32 odd_lane(__u64 key)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return key & 0xff;
#else
	return key & 0xff00;
#endif
}

/* XORs `length` bytes at `at`. Returns false if a byte is beyond the frame. `growth` is never 0. */
static __always_inline bool xor_payload(__u8 *at, const void *end, __u32 length, __u64 key,
					__u32 *growth)
{
	__u8 *const start = at;
	struct selected_sums sums = {};

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < MAX_BLOCKS; i++) {
		if (i >= length / BLOCK)
			break;
		if ((void *)at + BLOCK > end)
			return false;
		XOR_TWO(at, key, sums);
		XOR_TWO(at + 16, key, sums);
		XOR_TWO(at + 32, key, sums);
		XOR_TWO(at + 48, key, sums);
		at += BLOCK;
	}
	/* Compute `at` from `length` and not from the loop, because the verifier would follow the
	 * rest for each length. */
	at = start + (length & (MAX_OFFSET & ~(BLOCK - 1)));
	if (length & 32) {
		if ((void *)at + 32 > end)
			return false;
		XOR_TWO(at, key, sums);
		XOR_TWO(at + 16, key, sums);
		at += 32;
	}
	if (length & 16) {
		if ((void *)at + 16 > end)
			return false;
		XOR_TWO(at, key, sums);
		at += 16;
	}
	if (length & 8) {
		if ((void *)at + 8 > end)
			return false;
		add_selected(&sums, XOR(__u64, at, key));
		at += 8;
	}
	if (length & 4) {
		if ((void *)at + 4 > end)
			return false;
		add_selected(&sums, XOR(__u32, at, key));
		at += 4;
	}
	if (length & 2) {
		if ((void *)at + 2 > end)
			return false;
		add_selected(&sums, XOR(__u16, at, key));
		at += 2;
	}

	__u64 added = (__u64)(length / 2) * (key & 0xffff);

	if (length & 1) {
		if ((void *)at + 1 > end)
			return false;

		__u32 lane = odd_lane(key);
		/* The byte has the same place in a word as before. The word's other byte is zero.
		 */
		__u32 byte = *at & (__u8)key;

		sums.words += odd_lane(byte | byte << 8);
		*at ^= (__u8)key;
		added += lane;
	}
	/* Ones' complement: subtracting s equals adding 0xffff - s. */
	*growth = fold(added + 2 * (0xffff - fold(total_sum(&sums))));
	return true;
}

/* Corrects the checksum at `offset` after the covered sum grew by `growth`. */
static __always_inline bool fix_checksum(hook_ctx *ctx, __u32 offset, __u32 growth, bool udp)
{
#if defined(MYELIN_HOOK_XDP)
	__sum16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return false;
	if (udp && !*field)
		return true;

	__u16 sum = ~fold((__u16) ~*field + growth);

	*field = udp && !sum ? 0xffff : sum;
	return true;
#else
	const __sum16 *field = (void *)(long)ctx->data + (offset & MAX_OFFSET);

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return false;
	if (udp && !*field) {
		/* No field compensates the payload, so correct the NIC's sum, if there is one. */
		bpf_csum_update(ctx, growth);
		return true;
	}
	/*
	 * Does nothing if the NIC completes the checksum (CHECKSUM_PARTIAL). A sum over the whole
	 * packet (CHECKSUM_COMPLETE) stays valid, because payload and checksum together add 0.
	 */
	return bpf_l4_csum_replace(ctx, offset, 0, growth, udp ? BPF_F_MARK_MANGLED_0 : 0) == 0;
#endif
}

static __always_inline bool transform_packet(hook_ctx *ctx)
{
	struct headers headers;

	if (!hook_headers(ctx, &headers) || !(headers.flags & FLAG_PORTS))
		return false;
#if defined(MYELIN_HOOK_TC)
	if (ctx->gso_segs > 1 || ctx->gso_size)
		return false;
#endif

	__u32 length = headers.end - headers.payload;
	__u8 protocol;
	__u32 growth;

	if (headers.end < headers.payload || length > MAX_PAYLOAD || !hook_pull(ctx, headers.end) ||
	    !xor_payload((void *)(long)ctx->data + (headers.payload & MAX_OFFSET),
			 (void *)(long)ctx->data_end, length, INSTANCE.key, &growth) ||
	    !read_protocol(ctx, &headers, &protocol))
		return false;

	bool udp = protocol == IPPROTO_UDP;
	__u32 field = udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check);

	return fix_checksum(ctx, headers.l4 + field, growth, udp);
}

HOOK_SECTION
int myelin_xor(hook_ctx *ctx)
{
	struct myelin_line *line = counter_line(HOP(line));

	__u64 entered = hop_enter(ctx, line);

	if (!transform_packet(ctx))
		return hop_drop(ctx, line);
	hop_leave(line, entered);
	return hop_exit(ctx);
}

char LICENSE[] SEC("license") = "GPL";
