// SPDX-License-Identifier: Apache-2.0
/*
 * Throughput of DPDK's ring with one producer and one consumer on two cores, as
 * experiments/rings.rs measures Myelin's ring: 64-byte descriptors, 32 at once or none, a new ring
 * for each run.
 *
 * ring_throughput PRODUCER CONSUMER WINDOWS BATCHES: each line of standard input starts a run. Its
 * output is one line, the consumer's time of each window of BATCHES batches in nanoseconds. The
 * program ends with its input.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <rte_errno.h>
#include <rte_pause.h>
#include <rte_ring.h>
#include <rte_ring_elem.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENTRIES 1024u
#define BATCH	32u
#define WORDS	8u

struct descriptor {
	uint64_t words[WORDS];
};

struct run {
	struct rte_ring *ring;
	unsigned windows;
	unsigned batches; /* in a window */
	uint64_t *window_ns;
};

static _Noreturn void fail(const char *what, int error)
{
	fprintf(stderr, "ring_throughput: %s: %s\n", what, strerror(error));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One window more than the consumer times: in the first, the ring's memory is not yet cached. */
static uint64_t batches_of(const struct run *run)
{
	return (uint64_t)(run->windows + 1) * run->batches;
}

static void *produce(void *argument)
{
	const struct run *run = argument;
	struct descriptor items[BATCH];

	memset(items, 7, sizeof(items));
	for (uint64_t batch = 0; batch < batches_of(run); batch++) {
		items[BATCH - 1].words[WORDS - 1] = batch;
		asm volatile("" ::"r"(items) : "memory");
		while (!rte_ring_sp_enqueue_bulk_elem(run->ring, items, sizeof(items[0]), BATCH,
						      NULL))
			rte_pause();
	}
	return NULL;
}

static void *consume(void *argument)
{
	const struct run *run = argument;
	struct descriptor items[BATCH];
	uint64_t before = now_ns();

	for (unsigned window = 0; window <= run->windows; window++) {
		for (unsigned i = 0; i < run->batches; i++) {
			while (!rte_ring_sc_dequeue_bulk_elem(run->ring, items, sizeof(items[0]),
							      BATCH, NULL))
				rte_pause();
			asm volatile("" ::"r"(items) : "memory");
			if (items[BATCH - 1].words[WORDS - 1] !=
			    (uint64_t)window * run->batches + i)
				fail("a dequeued descriptor has a wrong number", EPROTO);
		}

		uint64_t now = now_ns();

		if (window)
			run->window_ns[window - 1] = now - before;
		before = now;
	}
	return NULL;
}

/* Starts a thread directly on its core, because the parent may occupy its own core. */
static pthread_t start(void *(*work)(void *), struct run *run, unsigned core)
{
	pthread_attr_t attributes;
	pthread_t thread;
	cpu_set_t cpus;
	int error;

	CPU_ZERO(&cpus);
	CPU_SET(core, &cpus);
	pthread_attr_init(&attributes);
	error = pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
	if (!error)
		error = pthread_create(&thread, &attributes, work, run);
	if (error)
		fail("starting a thread on its core", error);
	pthread_attr_destroy(&attributes);
	return thread;
}

static void measure(struct run *run, const unsigned *cores)
{
	ssize_t size = rte_ring_get_memsize_elem(sizeof(struct descriptor), ENTRIES);
	pthread_t producer, consumer;
	int error;

	if (size < 0)
		fail("computing the size of a ring", (int)-size);
	run->ring = aligned_alloc(4096, ((size_t)size + 4095) & ~(size_t)4095);
	if (!run->ring)
		fail("allocating memory for a ring", ENOMEM);
	error = rte_ring_init(run->ring, "ring", ENTRIES, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (error)
		fail("making a ring", -error);
	producer = start(produce, run, cores[0]);
	consumer = start(consume, run, cores[1]);
	pthread_join(producer, NULL);
	pthread_join(consumer, NULL);
	free(run->ring);
}

int main(int argc, char **argv)
{
	struct run run = {0};
	unsigned cores[2];
	char line[16];

	if (argc != 5) {
		fprintf(stderr, "usage: ring_throughput PRODUCER CONSUMER WINDOWS BATCHES\n");
		return 2;
	}
	cores[0] = (unsigned)strtoul(argv[1], NULL, 10);
	cores[1] = (unsigned)strtoul(argv[2], NULL, 10);
	run.windows = (unsigned)strtoul(argv[3], NULL, 10);
	run.batches = (unsigned)strtoul(argv[4], NULL, 10);
	run.window_ns = calloc(run.windows, sizeof(*run.window_ns));
	if (!run.window_ns)
		fail("allocating memory for the windows", ENOMEM);
	/* After an interrupt from the terminal, the parent closes this program's input. */
	signal(SIGINT, SIG_IGN);
	while (fgets(line, sizeof(line), stdin)) {
		measure(&run, cores);
		for (unsigned window = 0; window < run.windows; window++)
			printf("%llu ", (unsigned long long)run.window_ns[window]);
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
