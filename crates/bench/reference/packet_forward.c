// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal AF_PACKET forwarder (packet(7)): a raw socket on each interface, one frame for each
 * system call, as in most network functions in user space.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/socket.h>

#include "reference.h"

#define FRAME_SIZE 2048
/* Polls without a frame after which a held frame leaves alone. */
#define IDLE_POLLS 1000

struct port {
	int socket;
};

static void fail(const char *program, const char *step)
{
	fprintf(stderr, "%s: %s: %s\n", program, step, strerror(errno));
	exit(1);
}

static struct port open_port(const char *program, const char *name)
{
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)interface_index(program, name),
	};
	struct packet_mreq promiscuous = {
		.mr_ifindex = address.sll_ifindex,
		.mr_type = PACKET_MR_PROMISC,
	};
	int one = 1;
	/* Protocol 0 receives nothing until the socket is bound to its interface. */
	struct port port = {.socket = socket(AF_PACKET, SOCK_RAW, 0)};

	if (port.socket < 0)
		fail(program, "opening a packet socket");
	if (setsockopt(port.socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) ||
	    setsockopt(port.socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous,
		       sizeof(promiscuous)))
		fail(program, "setting up a packet socket");
	if (bind(port.socket, (struct sockaddr *)&address, sizeof(address)))
		fail(program, "binding a packet socket");
	return port;
}

/* Forwards waiting frames, at most `batch`. */
static void forward(const struct port *from, const struct port *to, unsigned batch)
{
	static char frame[FRAME_SIZE];

	for (unsigned count = 0; count < batch; count++) {
		ssize_t length = recv(from->socket, frame, sizeof(frame), MSG_DONTWAIT);

		/* A frame that cannot be sent is lost, as on a full link. */
		if (length <= 0 || send(to->socket, frame, (size_t)length, MSG_DONTWAIT) < 0)
			return;
	}
}

/* Holds each second frame back until the next one has left. */
static void forward_swapped(const struct port *from, const struct port *to)
{
	static char held[FRAME_SIZE], frame[FRAME_SIZE];
	static ssize_t held_length;
	static unsigned idle;
	ssize_t length =
		recv(from->socket, held_length > 0 ? frame : held, FRAME_SIZE, MSG_DONTWAIT);

	if (length > 0 && held_length <= 0) {
		held_length = length;
		idle = 0;
		return;
	}
	if (length > 0)
		send(to->socket, frame, (size_t)length, MSG_DONTWAIT);
	else if (held_length <= 0 || ++idle < IDLE_POLLS)
		return;
	send(to->socket, held, (size_t)held_length, MSG_DONTWAIT);
	held_length = 0;
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv);
	struct port ingress = open_port(argv[0], options.ingress);
	struct port egress = open_port(argv[0], options.egress);

	pin(argv[0], options.core);
	announce_ready("generic");
	while (running()) {
		if (options.swap)
			forward_swapped(&ingress, &egress);
		else
			forward(&ingress, &egress, options.batch);
	}
	return 0;
}
