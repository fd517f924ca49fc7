// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal DPDK forwarder over the net_af_xdp driver, with which DPDK uses an interface of the
 * kernel (doc.dpdk.org, "AF_XDP Poll Mode Driver"). Runs without hugepages. The driver loads its
 * XDP program through libxdp.
 *
 * Each port has a separate UMEM, so a sent frame is copied between them: the distributions' builds
 * lack sharing (`shared_umem=1`).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sys/socket.h>

#include "reference.h"

#define FRAMES	   8191u /* of the pool; 2^n - 1 needs the least memory */
#define CACHE	   250u	 /* frames in a core's cache of the pool */
#define RING	   2048u
#define MAX_DEVARG (IF_NAMESIZE + 64)

static _Noreturn void fail(const char *what, const char *where, int error)
{
	fprintf(stderr, "dpdk_forward: %s %s: %s\n", what, where, rte_strerror(error));
	exit(1);
}

/* Without busy polling, which is slower on veth: there is no interrupt to save. */
static void describe_port(char *text, int number, const char *interface)
{
	snprintf(text, MAX_DEVARG, "--vdev=net_af_xdp%d,iface=%s,busy_budget=0", number, interface);
}

static void start_eal(const struct options *options)
{
	char core[16], ingress[MAX_DEVARG], egress[MAX_DEVARG];
	/* clang-format off */
	char *arguments[] = {
		"dpdk_forward", "-l", core, "--no-pci", "--no-huge", "-m", "64",
		"--no-shconf", "--no-telemetry", ingress, egress, NULL,
	};
	/* clang-format on */

	/* Without libxdp's dispatcher, detach() can remove the program of a port. */
	setenv("LIBXDP_SKIP_DISPATCHER", "1", 1);
	snprintf(core, sizeof(core), "%d", options->core);
	describe_port(ingress, 0, options->ingress);
	describe_port(egress, 1, options->egress);
	if (rte_eal_init(sizeof(arguments) / sizeof(arguments[0]) - 1, arguments) < 0)
		fail("starting DPDK's environment on core", core, rte_errno);
}

static uint16_t start_port(const char *device, const char *interface, struct rte_mempool *pool)
{
	struct rte_eth_conf configuration = {0};
	uint16_t port;
	int error = rte_eth_dev_get_port_by_name(device, &port);

	if (error)
		fail("finding the net_af_xdp driver (needs root and DPDK's drivers) on", interface,
		     -error);
	error = rte_eth_dev_configure(port, 1, 1, &configuration);
	if (!error)
		error = rte_eth_rx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL, pool);
	if (!error)
		error = rte_eth_tx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL);
	if (!error)
		error = rte_eth_dev_start(port);
	if (error)
		fail("starting the port on", interface, -error);
	return port;
}

/* net_af_xdp cannot open a port that only sends. With one direction, the program of the egress must
 * be detached, or it would receive the replies, which the caller handles. */
static void detach(const char *interface)
{
	struct {
		struct nlmsghdr header;
		struct ifinfomsg link;
		struct rtattr xdp;
		struct rtattr fd_header;
		int fd;
	} request = {
		.header = {.nlmsg_len = sizeof(request),
			   .nlmsg_type = RTM_SETLINK,
			   .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
		.link = {.ifi_family = AF_UNSPEC,
			 .ifi_index = (int)interface_index("dpdk_forward", interface)},
		.xdp = {.rta_len = sizeof(request) - offsetof(typeof(request), xdp),
			.rta_type = NLA_F_NESTED | IFLA_XDP},
		.fd_header = {.rta_len = RTA_LENGTH(sizeof(int)), .rta_type = IFLA_XDP_FD},
		.fd = -1,
	};
	struct {
		struct nlmsghdr header;
		struct nlmsgerr error;
		char echoed_request[sizeof(request)];
	} answer;
	int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (netlink < 0 || send(netlink, &request, sizeof(request), 0) < 0 ||
	    recv(netlink, &answer, sizeof(answer), 0) < 0)
		fail("detaching the XDP program of", interface, errno);
	if (answer.error.error)
		fail("detaching the XDP program of", interface, -answer.error.error);
	close(netlink);
}

/* Moves up to `batch` frames from one port to the other. */
static void forward(uint16_t from, uint16_t to, uint16_t batch)
{
	struct rte_mbuf *frames[MAX_BATCH];
	uint16_t received = rte_eth_rx_burst(from, 0, frames, batch);
	uint16_t sent;

	if (!received)
		return;
	sent = rte_eth_tx_burst(to, 0, frames, received);
	if (sent < received)
		rte_pktmbuf_free_bulk(frames + sent, received - sent);
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv);
	struct rte_mempool *pool;
	uint16_t ingress, egress;

	interface_index("dpdk_forward", options.ingress);
	interface_index("dpdk_forward", options.egress);
	pin("dpdk_forward", options.core);
	start_eal(&options);
	pool = rte_pktmbuf_pool_create("frames", FRAMES, CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
				       SOCKET_ID_ANY);
	if (!pool)
		fail("allocating memory for", "the frames", rte_errno);
	ingress = start_port("net_af_xdp0", options.ingress, pool);
	egress = start_port("net_af_xdp1", options.egress, pool);
	detach(options.egress);

	announce_ready("native");
	while (running())
		forward(ingress, egress, (uint16_t)options.batch);
	rte_eth_dev_stop(ingress);
	rte_eth_dev_close(ingress);
	rte_eth_dev_stop(egress);
	rte_eth_dev_close(egress);
	rte_eal_cleanup();
	return 0;
}
