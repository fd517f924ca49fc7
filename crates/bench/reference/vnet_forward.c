// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal forwarder of super-packets: two packet sockets with virtio-net headers (packet(7),
 * PACKET_VNET_HDR) in one process that sleeps while no frame waits. Checksums and segmentation stay
 * with the links. It forwards both ways.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sys/socket.h>

#include "reference.h"

/* A super-packet of 64 KiB with its headers. */
#define FRAME_SIZE (65536 + 256)
/* Bytes of a socket's buffer: the default holds three super-packets. */
#define LONG_BUFFER (8 << 20)

static void fail(const char *program, const char *step)
{
	fprintf(stderr, "%s: %s: %s\n", program, step, strerror(errno));
	exit(1);
}

static int open_port(const char *program, const char *name)
{
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)interface_index(program, name),
	};
	/* Protocol 0 receives nothing until the socket is bound to its interface. */
	int one = 1, bytes = LONG_BUFFER, port = socket(AF_PACKET, SOCK_RAW, 0);

	if (port < 0 || setsockopt(port, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) ||
	    setsockopt(port, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) ||
	    setsockopt(port, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) ||
	    bind(port, (struct sockaddr *)&address, sizeof(address)))
		fail(program, "opening a packet socket");
	return port;
}

/* Forwards waiting frames, at most `batch`. A frame that cannot be sent is lost. */
static void forward(int from, int to, unsigned batch)
{
	static char frame[FRAME_SIZE];

	for (unsigned count = 0; count < batch; count++) {
		ssize_t length = recv(from, frame, sizeof(frame), MSG_DONTWAIT);

		if (length <= 0)
			return;
		send(to, frame, (size_t)length, 0);
	}
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv);
	int ingress = open_port(argv[0], options.ingress);
	int egress = open_port(argv[0], options.egress);
	struct pollfd ports[] = {{.fd = ingress, .events = POLLIN},
				 {.fd = egress, .events = POLLIN}};

	announce_ready("generic");
	while (!stop_requested && getppid() == parent) {
		if (poll(ports, 2, 1000) < 0 && errno != EINTR)
			fail(argv[0], "waiting for frames");
		forward(ingress, egress, options.batch);
		forward(egress, ingress, options.batch);
	}
	return 0;
}
