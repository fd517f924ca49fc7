// SPDX-License-Identifier: Apache-2.0
/*
 * The centralized approach of CALVIN's comparison (Xiang et al., JSAC 2019, section II-B): all
 * functions in one machine, with the kernel's stack in between. A packet crosses between kernel and
 * user space four times: into this process, into a TAP device, where the kernel routes it (the
 * first function), out of another TAP device (the second function: forward), and to the egress.
 *
 * It sleeps between packets, with the system's queues, as published. With --poll it polls, takes
 * several frames a turn, has longer queues and bypasses the egress's queueing discipline: the best
 * form of this layout. The parent gives central1 a route and a neighbour.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "reference.h"

#define FRAME_SIZE 2048
/* Long queues: bytes of a socket's buffer, and frames of a TAP device. */
#define LONG_BUFFER (8 << 20)
#define LONG_QUEUE  4096

static void fail(const char *program, const char *step)
{
	fprintf(stderr, "%s: %s: %s\n", program, step, strerror(errno));
	exit(1);
}

static int open_tap(const char *program, const char *name)
{
	struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
	int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (tap < 0)
		fail(program, "opening /dev/net/tun");
	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (ioctl(tap, TUNSETIFF, &request))
		fail(program, "making a TAP device");
	return tap;
}

static int open_packet(const char *program, const char *name)
{
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_IP),
		.sll_ifindex = (int)interface_index(program, name),
	};
	int one = 1, descriptor = socket(AF_PACKET, SOCK_RAW, 0);

	if (descriptor < 0 ||
	    setsockopt(descriptor, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) ||
	    bind(descriptor, (struct sockaddr *)&address, sizeof(address)))
		fail(program, "opening a packet socket");
	return descriptor;
}

static void lengthen_queues(const char *program, int ingress, int egress, const char *tap)
{
	struct ifreq request = {.ifr_qlen = LONG_QUEUE};
	int bytes = LONG_BUFFER, one = 1;

	strncpy(request.ifr_name, tap, IFNAMSIZ - 1);
	if (setsockopt(ingress, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) ||
	    setsockopt(egress, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one)) ||
	    ioctl(ingress, SIOCSIFTXQLEN, &request))
		fail(program, "lengthening its queues");
}

/* Moves waiting frames, at most `batch`. */
static void move(int from, int to, unsigned batch)
{
	static char frame[FRAME_SIZE];

	for (unsigned count = 0; count < batch; count++) {
		ssize_t length = read(from, frame, sizeof(frame));

		if (length <= 0 || write(to, frame, (size_t)length) < 0)
			return;
	}
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv);
	int ingress = open_packet(argv[0], options.ingress);
	int egress = open_packet(argv[0], options.egress);
	int first = open_tap(argv[0], "central0"), second = open_tap(argv[0], "central1");
	struct pollfd waiting[] = {{.fd = ingress, .events = POLLIN},
				   {.fd = second, .events = POLLIN}};

	if (fcntl(ingress, F_SETFL, O_NONBLOCK))
		fail(argv[0], "making a socket non-blocking");
	if (options.poll)
		lengthen_queues(argv[0], ingress, egress, "central1");
	pin(argv[0], options.core);
	announce_ready("generic");
	while (running()) {
		if (!options.poll && poll(waiting, 2, 1000) < 0 && errno != EINTR)
			fail(argv[0], "waiting for frames");
		move(ingress, first, options.batch);
		move(second, egress, options.batch);
	}
	return 0;
}
