// SPDX-License-Identifier: Apache-2.0
/*
 * What it costs to give a core from one process that polls to another one, by mechanism.
 *
 * core_switch CORE OTHER: two processes poll on CORE. Each line of standard input,
 * "MECHANISM SWITCHES EXTRA_NS", starts a run; each hand-over of the processes themselves then
 * takes EXTRA_NS longer. The output is one line with two medians in nanoseconds: the time in which
 * neither process ran, and the time from the decision until the next process ran. The program ends
 * with its input.
 *
 *   yield    both are real-time threads of one priority; the process calls sched_yield()
 *   futex    the process wakes the next one by a futex and waits on its own
 *   flip     a process on OTHER changes real-time priorities
 *   preempt  a process on CORE sleeps, wakes up and changes real-time priorities
 *   weights  a process on OTHER changes nice values, -20 and 19
 *   stop     a process on OTHER sends SIGCONT and SIGSTOP
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_SWITCHES 4096u
/* Time that a process works in its turn, and that a preemptor sleeps, ns. */
#define TURN_NS	 20000u
#define SLEEP_NS 250000u
/* Even a busy machine is slower than this only if a process never gets the core, ns. */
#define LIMIT_NS 60000000000ull
/* As crates/linux/src/priorities.rs. */
#define WAITING	  1
#define RUNNING	  2
#define PREEMPTOR 10

enum mechanism { YIELD, FUTEX, FLIP, PREEMPT, WEIGHTS, STOP, MECHANISMS };

static const char *const names[MECHANISMS] = {"yield",	 "futex",   "flip",
					      "preempt", "weights", "stop"};

struct shared {
	enum mechanism mechanism;
	unsigned switches;
	uint64_t extra_ns;
	/* The process that shall run, by number of the switch: the parity. */
	_Atomic uint32_t wanted;
	_Atomic uint32_t answered;
	_Atomic uint32_t start;
	_Atomic uint64_t decided_ns;
	/* The last time at which each process ran. */
	_Atomic uint64_t last_ns[2];
	uint64_t lost_ns[MOST_SWITCHES];
	uint64_t effect_ns[MOST_SWITCHES];
};

static struct shared *shared;

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "core_switch: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
	syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void bind_to(unsigned core)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(core, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("binding a process to its core");
}

static void set_priority(pid_t pid, int priority)
{
	const struct sched_param parameters = {.sched_priority = priority};
	const int policy = priority ? SCHED_FIFO : SCHED_OTHER;

	if (sched_setscheduler(pid, policy, &parameters))
		fail("setting a real-time priority");
}

static void pass_ns(uint64_t ns)
{
	const uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		;
}

/* Records the turn that this process sees first. */
static void answer(uint32_t self)
{
	const uint32_t wanted = atomic_load(&shared->wanted);

	if (wanted % 2 != self || atomic_load(&shared->answered) == wanted)
		return;

	/* After the look: the kernel may have stopped this process in between. */
	const uint64_t now = now_ns();
	const uint64_t own = atomic_load(&shared->last_ns[self]);
	const uint64_t other = atomic_load(&shared->last_ns[1 - self]);

	shared->effect_ns[wanted - 1] = now - atomic_load(&shared->decided_ns);
	/* A process that has the core already loses nothing. */
	shared->lost_ns[wanted - 1] = now - (own > other ? own : other);
	atomic_store(&shared->answered, wanted);
}

/* Gives the core to the other process. */
static void hand_over(void)
{
	const uint32_t next = atomic_load(&shared->wanted) + 1;

	atomic_store(&shared->decided_ns, now_ns());
	pass_ns(shared->extra_ns);
	atomic_store(&shared->wanted, next);
	if (shared->mechanism == YIELD) {
		sched_yield();
	} else {
		futex(&shared->wanted, FUTEX_WAKE, 1);
		if (next < shared->switches)
			futex(&shared->wanted, FUTEX_WAIT, next);
	}
}

static _Noreturn void poll_core(uint32_t self, unsigned core)
{
	/* The kernel also ends this process if it never gets the core again. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* First the priority: on the core the other process may have it already. */
	if (shared->mechanism == YIELD)
		set_priority(0, WAITING);
	bind_to(core);
	while (!atomic_load(&shared->start))
		sched_yield();

	const int hands_over = shared->mechanism == YIELD || shared->mechanism == FUTEX;

	for (;;) {
		const uint32_t wanted = atomic_load(&shared->wanted);

		if (hands_over && wanted % 2 != self) {
			if (shared->mechanism == YIELD)
				sched_yield();
			else
				futex(&shared->wanted, FUTEX_WAIT, wanted);
			continue;
		}
		answer(self);
		if (hands_over) {
			if (wanted >= shared->switches)
				_exit(0);
			pass_ns(TURN_NS);
		}
		atomic_store(&shared->last_ns[self], now_ns());
		if (hands_over)
			hand_over();
	}
}

/* Tells the kernel that a process runs or waits. */
static void set_state(pid_t pid, int runs)
{
	switch (shared->mechanism) {
	case FLIP:
	case PREEMPT:
		set_priority(pid, runs ? RUNNING : WAITING);
		break;
	case WEIGHTS:
		if (setpriority(PRIO_PROCESS, (id_t)pid, runs ? -20 : 19))
			fail("setting a nice value");
		break;
	default:
		if (kill(pid, runs ? SIGCONT : SIGSTOP))
			fail("sending a signal");
	}
}

static void sleep_ns(long ns)
{
	const struct timespec time = {.tv_nsec = ns};

	nanosleep(&time, NULL);
}

/* Switches from outside of the processes. */
static void switch_from_outside(const pid_t *pids)
{
	const int sleeps = shared->mechanism == PREEMPT;

	for (uint32_t next = 1; next <= shared->switches; next++) {
		if (sleeps)
			sleep_ns(SLEEP_NS);
		else
			pass_ns(TURN_NS);
		atomic_store(&shared->decided_ns, now_ns());
		atomic_store(&shared->wanted, next);
		/* The next one first, so that the core never has only waiting processes. */
		set_state(pids[next % 2], 1);
		set_state(pids[(next + 1) % 2], 0);

		const uint64_t limit = now_ns() + LIMIT_NS;

		while (atomic_load(&shared->answered) != next) {
			if (sleeps)
				sleep_ns(SLEEP_NS);
			if (now_ns() > limit) {
				errno = ETIMEDOUT;
				fail("waiting for the process that has the turn");
			}
		}
	}
}

static int compare(const void *one, const void *other)
{
	const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

static uint64_t median(uint64_t *values, unsigned count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

static pid_t start_poller(uint32_t self, unsigned core)
{
	const pid_t pid = fork();

	if (pid < 0)
		fail("starting a process");
	if (!pid)
		poll_core(self, core);
	return pid;
}

static void measure(unsigned core, unsigned other)
{
	const enum mechanism mechanism = shared->mechanism;
	pid_t pids[2];

	bind_to(other);
	for (uint32_t self = 0; self < 2; self++)
		pids[self] = start_poller(self, core);
	if (mechanism != YIELD && mechanism != FUTEX) {
		if (mechanism == PREEMPT) {
			set_priority(0, PREEMPTOR);
			bind_to(core);
		}
		set_state(pids[1], 0);
		set_state(pids[0], 1);
		atomic_store(&shared->start, 1);
		switch_from_outside(pids);
	} else {
		const uint64_t limit = now_ns() + LIMIT_NS;

		atomic_store(&shared->start, 1);
		while (atomic_load(&shared->answered) < shared->switches && now_ns() < limit)
			sleep_ns(SLEEP_NS);
		if (atomic_load(&shared->answered) < shared->switches) {
			errno = ETIMEDOUT;
			fail("waiting for the process that has the turn");
		}
	}
	for (int i = 0; i < 2; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	if (mechanism == PREEMPT)
		set_priority(0, 0);
	bind_to(other);
	printf("%llu %llu\n", (unsigned long long)median(shared->lost_ns, shared->switches),
	       (unsigned long long)median(shared->effect_ns, shared->switches));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char name[16];
	unsigned switches;
	unsigned long extra_ns;

	if (argc != 3) {
		fprintf(stderr, "usage: core_switch CORE OTHER\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		fail("making shared memory");
	while (scanf("%15s %u %lu", name, &switches, &extra_ns) == 3) {
		unsigned mechanism = 0;

		while (mechanism < MECHANISMS && strcmp(name, names[mechanism]))
			mechanism++;
		if (mechanism == MECHANISMS || !switches || switches > MOST_SWITCHES) {
			fprintf(stderr, "core_switch: there is no run `%s %u`\n", name, switches);
			return 2;
		}
		memset(shared, 0, sizeof(*shared));
		shared->mechanism = mechanism;
		shared->switches = switches;
		shared->extra_ns = extra_ns;
		measure((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]));
	}
	return 0;
}
