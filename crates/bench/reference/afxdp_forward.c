// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal AF_XDP forwarder: plain C over the kernel's interface, without libxdp and libbpf.
 *
 * Two sockets share one UMEM, so the program sends a received frame without a copy
 * (Documentation/networking/af_xdp.rst, "XDP_SHARED_UMEM"; across interfaces since Linux 5.10). It
 * requests copy mode, the only mode of virtual links. Queue 0 only.
 *
 * Each direction owns FRAMES frames, which circulate: fill ring -> rx ring -> the other's tx ring
 * -> the other's completion ring -> fill ring. Every ring holds FRAMES entries, so none can
 * overflow, and no frame needs a record of its owner.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "reference.h"

#define FRAMES	   2048u
#define FRAME_SIZE 2048u

/* One producer, one consumer: this process and the kernel. */
struct ring {
	uint32_t *producer;
	uint32_t *consumer;
	uint32_t *flags;
	void *entries;	 /* uint64_t addresses (fill, completion) or struct xdp_desc (rx, tx) */
	uint32_t cursor; /* this process's index, not yet published to the kernel */
};

struct port {
	const char *name;
	unsigned ifindex;
	int socket;
	bool kick_again; /* the kernel left frames in the tx ring */
	struct ring rx, tx, fill, completion;
};

static _Noreturn void fail(const char *what, const char *where)
{
	fprintf(stderr, "afxdp_forward: %s %s: %s\n", what, where, strerror(errno));
	exit(1);
}

static int sys_bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static uint32_t ring_readable(const struct ring *ring)
{
	return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - ring->cursor;
}

static uint64_t *address_at(const struct ring *ring, uint32_t index)
{
	return (uint64_t *)ring->entries + (index & (FRAMES - 1));
}

static struct xdp_desc *descriptor_at(const struct ring *ring, uint32_t index)
{
	return (struct xdp_desc *)ring->entries + (index & (FRAMES - 1));
}

static struct ring map_ring(const struct port *port, int size_option, uint64_t page_offset,
			    const struct xdp_ring_offset *offset, size_t entry_size)
{
	uint32_t entries = FRAMES;
	uint8_t *base;

	if (setsockopt(port->socket, SOL_XDP, size_option, &entries, sizeof(entries)))
		fail("setting the AF_XDP ring size on", port->name);
	base = mmap(NULL, offset->desc + FRAMES * entry_size, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_POPULATE, port->socket, (off_t)page_offset);
	if (base == MAP_FAILED)
		fail("mapping an AF_XDP ring of", port->name);
	return (struct ring){
		.producer = (uint32_t *)(base + offset->producer),
		.consumer = (uint32_t *)(base + offset->consumer),
		.flags = (uint32_t *)(base + offset->flags),
		.entries = base + offset->desc,
	};
}

/* Opens a socket and binds it to queue 0. The first one registers the UMEM, the second shares it.
 */
static void open_port(struct port *port, const char *name, void *area, const struct port *owner)
{
	struct xdp_umem_reg umem = {.addr = (uintptr_t)area,
				    .len = 2ull * FRAMES * FRAME_SIZE,
				    .chunk_size = FRAME_SIZE};
	struct sockaddr_xdp address = {.sxdp_family = AF_XDP};
	struct xdp_mmap_offsets offsets;
	socklen_t length = sizeof(offsets);

	port->name = name;
	port->ifindex = interface_index("afxdp_forward", name);
	port->socket = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (port->socket < 0)
		fail("opening an AF_XDP socket (needs root) for", name);
	if (!owner && setsockopt(port->socket, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)))
		fail("registering the UMEM of", name);
	if (getsockopt(port->socket, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length))
		fail("reading the AF_XDP ring offsets of", name);
	port->fill = map_ring(port, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr,
			      sizeof(uint64_t));
	port->completion = map_ring(port, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
				    &offsets.cr, sizeof(uint64_t));
	port->rx = map_ring(port, XDP_RX_RING, XDP_PGOFF_RX_RING, &offsets.rx,
			    sizeof(struct xdp_desc));
	port->tx = map_ring(port, XDP_TX_RING, XDP_PGOFF_TX_RING, &offsets.tx,
			    sizeof(struct xdp_desc));

	address.sxdp_ifindex = port->ifindex;
	address.sxdp_flags = owner ? XDP_SHARED_UMEM : XDP_COPY | XDP_USE_NEED_WAKEUP;
	address.sxdp_shared_umem_fd = owner ? (uint32_t)owner->socket : 0;
	if (bind(port->socket, (struct sockaddr *)&address, sizeof(address)))
		fail("binding an AF_XDP socket to queue 0 of", name);
}

/* Gives the kernel the frames. */
static void fill(struct port *port)
{
	for (uint64_t i = 0; i < FRAMES; i++)
		*address_at(&port->fill, port->fill.cursor++) = i * FRAME_SIZE;
	__atomic_store_n(port->fill.producer, port->fill.cursor, __ATOMIC_RELEASE);
}

/* Loads `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)` and attaches it. Returns
 * the mode. The link exists as long as this process, so the kernel detaches the program at its end.
 */
static const char *attach(const struct port *port)
{
	union bpf_attr map = {
		.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1};
	int sockets = sys_bpf(BPF_MAP_CREATE, &map);
	const struct bpf_insn program[] = {
		{BPF_LDX | BPF_MEM | BPF_W, BPF_REG_2, BPF_REG_1,
		 offsetof(struct xdp_md, rx_queue_index), 0},
		{BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, sockets},
		{0},
		{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, XDP_PASS},
		{BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},
		{BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
	};
	static const char license[] = "Apache-2.0";
	uint32_t queue = 0, socket = (uint32_t)port->socket;
	union bpf_attr update = {
		.map_fd = (uint32_t)sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&socket};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.expected_attach_type = BPF_XDP,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof(program) / sizeof(program[0]),
		.license = (uintptr_t)license,
	};
	union bpf_attr link = {
		.link_create = {.target_ifindex = port->ifindex, .attach_type = BPF_XDP}};
	int loaded;

	if (sockets < 0 || sys_bpf(BPF_MAP_UPDATE_ELEM, &update))
		fail("creating the XDP socket map for", port->name);
	loaded = sys_bpf(BPF_PROG_LOAD, &load);
	if (loaded < 0)
		fail("loading the XDP program for", port->name);
	link.link_create.prog_fd = (uint32_t)loaded;
	link.link_create.flags = XDP_FLAGS_DRV_MODE;
	if (sys_bpf(BPF_LINK_CREATE, &link) >= 0)
		return "native";
	link.link_create.flags = XDP_FLAGS_SKB_MODE;
	if (sys_bpf(BPF_LINK_CREATE, &link) >= 0)
		return "generic";
	fail("attaching XDP to", port->name);
}

/* Copy mode sends inside this call, at most 32 frames, and returns EAGAIN if there are more. */
static void kick(struct port *port)
{
	port->kick_again = sendto(port->socket, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0;
	if (port->kick_again && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS &&
	    errno != EINTR)
		fail("sending on", port->name);
}

/* Moves up to `batch` frames from one port to the other. */
static void forward(struct port *from, struct port *to, uint32_t batch)
{
	uint32_t received = ring_readable(&from->rx);
	uint32_t completed;

	if (received > batch)
		received = batch;
	if (received) {
		for (uint32_t i = 0; i < received; i++)
			*descriptor_at(&to->tx, to->tx.cursor++) =
				*descriptor_at(&from->rx, from->rx.cursor++);
		__atomic_store_n(from->rx.consumer, from->rx.cursor, __ATOMIC_RELEASE);
		__atomic_store_n(to->tx.producer, to->tx.cursor, __ATOMIC_RELEASE);
	}
	if (to->kick_again ||
	    (received && (__atomic_load_n(to->tx.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP)))
		kick(to);

	/* Copy mode needs no wake-up for the fill ring: the stack fills the frames. */
	completed = ring_readable(&to->completion);
	if (completed) {
		for (uint32_t i = 0; i < completed; i++)
			*address_at(&from->fill, from->fill.cursor++) =
				*address_at(&to->completion, to->completion.cursor++);
		__atomic_store_n(to->completion.consumer, to->completion.cursor, __ATOMIC_RELEASE);
		__atomic_store_n(from->fill.producer, from->fill.cursor, __ATOMIC_RELEASE);
	}
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv);
	struct port ingress = {0}, egress = {0};
	void *area;

	pin("afxdp_forward", options.core);
	area = mmap(NULL, 2ul * FRAMES * FRAME_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (area == MAP_FAILED)
		fail("allocating memory for", "the UMEM");

	open_port(&ingress, options.ingress, area, NULL);
	open_port(&egress, options.egress, area, &ingress);
	fill(&ingress);
	announce_ready(attach(&ingress));
	while (running())
		forward(&ingress, &egress, options.batch);
	return 0;
}
