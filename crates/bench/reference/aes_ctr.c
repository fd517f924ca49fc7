// SPDX-License-Identifier: Apache-2.0
/*
 * AES-128 in counter mode, byte by byte in plain C: encryption without the processor's AES
 * instructions. Written from FIPS 197 and NIST SP 800-38A. The key is expanded once.
 *
 * aes_ctr LENGTH WINDOWS PACKETS: each line of standard input starts a run. Its output is one line,
 * the time of each window of PACKETS payloads of LENGTH bytes in nanoseconds. The program ends with
 * its input. Before the first run it encrypts the examples of both standards.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK	   16
#define ROUNDS	   10
#define MAX_LENGTH 9216

struct key {
	uint8_t round[ROUNDS + 1][BLOCK];
};

static uint8_t sbox[256];

static uint8_t xtime(uint8_t byte)
{
	return (uint8_t)(byte << 1 ^ (byte >> 7) * 0x1b);
}

static uint8_t multiply(uint8_t a, uint8_t b)
{
	uint8_t sum = 0;

	for (; b; b >>= 1, a = xtime(a))
		if (b & 1)
			sum ^= a;
	return sum;
}

/* FIPS 197, section 5.1.1: the inverse in the field, then an affine map. */
static void fill_sbox(void)
{
	for (int byte = 0; byte < 256; byte++) {
		int inverse = 0;

		for (int other = 1; other < 256; other++)
			if (multiply((uint8_t)byte, (uint8_t)other) == 1)
				inverse = other;
		const int twice = inverse << 8 | inverse;

		sbox[byte] = (uint8_t)(0x63 ^ inverse ^ twice >> 7 ^ twice >> 6 ^ twice >> 5 ^
				       twice >> 4);
	}
}

/* Section 5.2. */
static void expand(struct key *key, const uint8_t *secret)
{
	uint8_t *const words = key->round[0];
	uint8_t constant = 1;

	memcpy(words, secret, BLOCK);
	for (int at = BLOCK; at < BLOCK * (ROUNDS + 1); at += 4) {
		const uint8_t *last = words + at - 4;
		uint8_t word[4] = {last[0], last[1], last[2], last[3]};

		if (at % BLOCK == 0) {
			word[0] = sbox[last[1]] ^ constant;
			word[1] = sbox[last[2]];
			word[2] = sbox[last[3]];
			word[3] = sbox[last[0]];
			constant = xtime(constant);
		}
		for (int i = 0; i < 4; i++)
			words[at + i] = words[at + i - BLOCK] ^ word[i];
	}
}

/* Section 5.1. The state has the order of the input: columns of four bytes. */
static void encrypt(const struct key *key, const uint8_t *in, uint8_t *out)
{
	uint8_t state[BLOCK], next[BLOCK];

	for (int i = 0; i < BLOCK; i++)
		state[i] = in[i] ^ key->round[0][i];
	for (int round = 1; round <= ROUNDS; round++) {
		/* SubBytes and ShiftRows */
		for (int i = 0; i < BLOCK; i++)
			next[i] = sbox[state[(i + 4 * (i % 4)) % BLOCK]];
		if (round < ROUNDS)
			for (int column = 0; column < BLOCK; column += 4) {
				uint8_t *c = next + column;
				const uint8_t first = c[0], all = c[0] ^ c[1] ^ c[2] ^ c[3];

				c[0] ^= all ^ xtime(c[0] ^ c[1]);
				c[1] ^= all ^ xtime(c[1] ^ c[2]);
				c[2] ^= all ^ xtime(c[2] ^ c[3]);
				c[3] ^= all ^ xtime(c[3] ^ first);
			}
		for (int i = 0; i < BLOCK; i++)
			state[i] = next[i] ^ key->round[round][i];
	}
	memcpy(out, state, BLOCK);
}

/* SP 800-38A, section 6.5; the last 32 bits of the block count. */
static void ctr(const struct key *key, uint8_t *counter, uint8_t *data, size_t length)
{
	uint8_t stream[BLOCK];

	for (size_t i = 0; i < length; i++) {
		if (i % BLOCK == 0) {
			encrypt(key, counter, stream);
			for (int at = BLOCK - 1; at >= BLOCK - 4 && ++counter[at] == 0; at--)
				;
		}
		data[i] ^= stream[i % BLOCK];
	}
}

/* FIPS 197, appendix C.1, and the first block of SP 800-38A, F.5.1. */
static int examples_match(void)
{
	static const uint8_t cipher[BLOCK] = {0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30,
					      0xd8, 0xcd, 0xb7, 0x80, 0x70, 0xb4, 0xc5, 0x5a};
	static const uint8_t ctr_key[BLOCK] = {0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6,
					       0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c};
	static const uint8_t ctr_cipher[BLOCK] = {0x87, 0x4d, 0x61, 0x91, 0xb6, 0x20, 0xe3, 0x26,
						  0x1b, 0xef, 0x68, 0x64, 0x99, 0x0d, 0xb6, 0xce};
	uint8_t data[BLOCK] = {0x6b, 0xc1, 0xbe, 0xe2, 0x2e, 0x40, 0x9f, 0x96,
			       0xe9, 0x3d, 0x7e, 0x11, 0x73, 0x93, 0x17, 0x2a};
	uint8_t secret[BLOCK], plain[BLOCK], counter[BLOCK], out[BLOCK];
	struct key key;

	for (int i = 0; i < BLOCK; i++) {
		secret[i] = (uint8_t)i;
		plain[i] = (uint8_t)(i * 0x11);
		counter[i] = (uint8_t)(0xf0 + i);
	}
	expand(&key, secret);
	encrypt(&key, plain, out);
	if (memcmp(out, cipher, BLOCK))
		return 0;
	expand(&key, ctr_key);
	ctr(&key, counter, data, BLOCK);
	return !memcmp(data, ctr_cipher, BLOCK);
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv)
{
	static uint8_t payload[MAX_LENGTH];
	uint8_t secret[BLOCK] = {0};
	struct key key;
	int line;

	const long length = argc == 4 ? atol(argv[1]) : 0;
	const long windows = argc == 4 ? atol(argv[2]) : 0;
	const long packets = argc == 4 ? atol(argv[3]) : 0;
	if (length < 1 || length > MAX_LENGTH || windows < 1 || packets < 1) {
		fprintf(stderr, "usage: %s LENGTH(1..%d) WINDOWS PACKETS\n", argv[0], MAX_LENGTH);
		return 2;
	}
	fill_sbox();
	if (!examples_match()) {
		fprintf(stderr,
			"aes_ctr: wrong results for the examples of FIPS 197 and SP 800-38A\n");
		return 1;
	}
	expand(&key, secret);
	while ((line = getchar()) != EOF) {
		if (line != '\n')
			continue;
		for (long window = 0; window < windows; window++) {
			const uint64_t start = now_ns();

			for (long packet = 0; packet < packets; packet++) {
				uint8_t counter[BLOCK] = {0};

				memcpy(counter, &packet, sizeof(packet));
				ctr(&key, counter, payload, (size_t)length);
			}
			printf("%llu ", (unsigned long long)(now_ns() - start));
		}
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
