/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common code of the reference forwarders: options, signals, and the line "ready".
 *
 * A reference program is a minimal forwarder with one technology, to compare Myelin with in the
 * same run. It inspects no packet: it sends the frames of one interface unchanged to the other.
 */
#ifndef MYELIN_REFERENCE_H
#define MYELIN_REFERENCE_H

#include <getopt.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_BATCH 256

struct options {
	const char *ingress;
	const char *egress;
	unsigned batch; /* most frames of one burst */
	int core;	/* the CPU that polls */
	bool poll;	/* poll; only centralized_forward can sleep */
	bool swap;	/* reorder pairs of frames; only packet_forward can */
};

static volatile sig_atomic_t stop_requested;
static pid_t parent; /* the process that started this one */

static void on_stop(int signal)
{
	(void)signal;
	stop_requested = 1;
}

static _Noreturn void usage(const char *program)
{
	fprintf(stderr,
		"usage: %s --ingress IF --egress IF [--batch 1..%d] [--core N] [--poll] [--swap]\n"
		"Forwards every frame of queue 0 of IF to the other IF; prints \"ready\"; "
		"SIGTERM ends it.\n",
		program, MAX_BATCH);
	exit(2);
}

static unsigned parse_number(const char *program, const char *option, const char *text,
			     unsigned least, unsigned most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end == text || *end || value < least || value > most) {
		fprintf(stderr, "%s: %s %s: expected a number from %u to %u\n", program, option,
			text, least, most);
		exit(2);
	}
	return (unsigned)value;
}

static struct options parse_options(int argc, char **argv)
{
	static const struct option table[] = {
		{"ingress", required_argument, NULL, 'i'},
		{"egress", required_argument, NULL, 'e'},
		{"batch", required_argument, NULL, 'b'},
		{"core", required_argument, NULL, 'c'},
		{"poll", no_argument, NULL, 'p'},
		{"swap", no_argument, NULL, 's'},
		{0},
	};
	struct options options = {.batch = 32, .core = sched_getcpu()};
	int option;

	parent = getppid();
	while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
		switch (option) {
		case 'i':
			options.ingress = optarg;
			break;
		case 'e':
			options.egress = optarg;
			break;
		case 'b':
			options.batch = parse_number(argv[0], "--batch", optarg, 1, MAX_BATCH);
			break;
		case 'c':
			options.core =
				(int)parse_number(argv[0], "--core", optarg, 0, CPU_SETSIZE - 1);
			break;
		case 'p':
			options.poll = true;
			break;
		case 's':
			options.swap = true;
			break;
		default:
			usage(argv[0]);
		}
	}
	if (!options.ingress || !options.egress || optind != argc)
		usage(argv[0]);
	return options;
}

static unsigned interface_index(const char *program, const char *name)
{
	unsigned index = if_nametoindex(name);

	if (!index) {
		fprintf(stderr, "%s: there is no interface %s in this network namespace\n", program,
			name);
		exit(1);
	}
	return index;
}

static inline void pin(const char *program, int core)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET((size_t)core, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus)) {
		fprintf(stderr, "%s: --core %d: this process may not run on that CPU\n", program,
			core);
		exit(2);
	}
}

static void announce_ready(const char *how)
{
	struct sigaction action = {.sa_handler = on_stop};

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	printf("ready %s\n", how);
	fflush(stdout);
}

/* A busy loop must not outlive its parent, even if that is killed. The check is a system call, so
 * it happens once in a million turns (some milliseconds). */
static inline bool running(void)
{
	static unsigned turns;

	if (stop_requested)
		return false;
	return (++turns & 0xfffff) || getppid() == parent;
}

#endif
