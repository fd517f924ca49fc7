// SPDX-License-Identifier: Apache-2.0
/*
 * Exports the parts of DPDK that the program uses as plain functions. DPDK's fast path is inline
 * code over structures whose layout depends on the DPDK version of the build.
 *
 * A process has one environment and one pool of packet buffers. The Rust side identifies a buffer
 * by its offset from the pool's lowest buffer, in bytes. It identifies a packet by this number and
 * the packet's offset in the buffer. Only the shim accesses the mbuf header, which lies directly
 * before its buffer.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_version.h>

#define MAX_BURST 256u

/* Same layout as `Descriptor` in sys.rs. */
struct descriptor {
	uint64_t buffer; /* offset from the pool's lowest buffer, bytes */
	uint32_t offset; /* of the packet in the buffer, bytes */
	uint32_t len;	 /* of the packet, bytes */
};

/* Same layout as `PoolInfo` in sys.rs. */
struct pool_info {
	uint8_t *start; /* first byte of the lowest buffer */
	uint64_t len;	/* bytes from there to the end of the highest buffer */
	uint32_t buffer_bytes;
	uint32_t count;
};

/* Same layout as `PortInfo` in sys.rs. */
struct port_info {
	uint16_t port;
	uint16_t receive_ring;
};

static struct rte_mempool *pool;
static uintptr_t base;

static char *log_text;
static size_t log_len;
static FILE *log_stream;

/* Captures DPDK's log up to log_end(), for an error message. */
static void log_begin(void)
{
	log_stream = open_memstream(&log_text, &log_len);
	if (log_stream)
		rte_openlog_stream(log_stream);
}

static void log_end(char *log, size_t log_size)
{
	log[0] = 0;
	rte_openlog_stream(NULL);
	if (!log_stream)
		return;
	fclose(log_stream);
	log_stream = NULL;
	if (log_text) {
		size_t from = log_len > log_size - 1 ? log_len - (log_size - 1) : 0;

		memcpy(log, log_text + from, log_len - from);
		log[log_len - from] = 0;
		free(log_text);
		log_text = NULL;
	}
}

/* Some functions of DPDK fail without setting rte_errno. */
static int failure(void)
{
	return rte_errno ? -rte_errno : -EIO;
}

static int start(int argc, char **argv, char *log, size_t log_size)
{
	int result;

	/*
	 * libxdp's dispatcher needs its own bpffs. Without the dispatcher, net_af_xdp removes its
	 * program when it closes.
	 */
	setenv("LIBXDP_SKIP_DISPATCHER", "1", 1);
	log_begin();
	result = rte_eal_init(argc, argv) < 0 ? failure() : 0;
	log_end(log, log_size);
	return result;
}

static void stop(void)
{
	rte_eal_cleanup();
}

static void record_bounds(struct rte_mempool *mempool, void *opaque, void *object, unsigned index)
{
	struct pool_info *info = opaque;
	struct rte_mbuf *mbuf = object;
	uint8_t *buffer = mbuf->buf_addr;
	uint64_t end;

	(void)mempool;
	(void)index;
	if (!info->start) {
		info->start = buffer;
		info->len = mbuf->buf_len;
	}
	if (buffer < info->start) {
		info->len += (uint64_t)(info->start - buffer);
		info->start = buffer;
	}
	end = (uint64_t)(buffer - info->start) + mbuf->buf_len;
	if (end > info->len)
		info->len = end;
	info->buffer_bytes = mbuf->buf_len;
	info->count++;
}

static int make_pool(uint32_t count, uint32_t cache, uint32_t buffer_bytes, struct pool_info *info)
{
	pool = rte_pktmbuf_pool_create("frames", count, cache, 0, (uint16_t)buffer_bytes,
				       SOCKET_ID_ANY);
	if (!pool)
		return failure();
	memset(info, 0, sizeof(*info));
	rte_mempool_obj_iter(pool, record_bounds, info);
	base = (uintptr_t)info->start;
	return 0;
}

struct buffer_list {
	uint64_t *buffers;
	uint32_t count;
};

static void record_buffer(struct rte_mempool *mempool, void *opaque, void *object, unsigned index)
{
	struct buffer_list *buffer_list = opaque;
	struct rte_mbuf *mbuf = object;

	(void)mempool;
	if (index < buffer_list->count)
		buffer_list->buffers[index] = (uintptr_t)mbuf->buf_addr - base;
}

static void list_buffers(uint64_t *buffers, uint32_t count)
{
	struct buffer_list buffer_list = {.buffers = buffers, .count = count};

	rte_mempool_obj_iter(pool, record_buffer, &buffer_list);
}

static int probe(const char *device, char *log, size_t log_size)
{
	int result;

	log_begin();
	result = rte_dev_probe(device);
	log_end(log, log_size);
	return result;
}

static int open_port(const char *name, uint16_t ring, struct port_info *info, char *log,
		     size_t log_size)
{
	struct rte_eth_conf configuration = {0};
	uint16_t port, receive_ring = ring, transmit_ring = ring;
	int result = rte_eth_dev_get_port_by_name(name, &port);

	log[0] = 0;
	if (result)
		return result;
	log_begin();
	result = rte_eth_dev_configure(port, 1, 1, &configuration);
	if (!result)
		result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive_ring, &transmit_ring);
	if (!result)
		result = rte_eth_rx_queue_setup(port, 0, receive_ring, SOCKET_ID_ANY, NULL, pool);
	if (!result)
		result = rte_eth_tx_queue_setup(port, 0, transmit_ring, SOCKET_ID_ANY, NULL);
	if (!result)
		result = rte_eth_dev_start(port);
	/* Ignore a failure: such a device receives all frames anyway, or has no addresses. */
	if (!result)
		rte_eth_promiscuous_enable(port);
	log_end(log, log_size);
	if (result)
		return result;
	info->port = port;
	info->receive_ring = receive_ring;
	return 0;
}

static void close_port(uint16_t port)
{
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
}

static struct rte_mbuf *mbuf_of(uint64_t buffer)
{
	/* No private area: the buffer follows its mbuf directly. */
	return (struct rte_mbuf *)(base + buffer - sizeof(struct rte_mbuf));
}

/* Returns the packet in one buffer of the pool. Copies the packet if the driver used several
 * buffers, or a different pool. Returns NULL if the packet does not fit into one buffer. */
static struct rte_mbuf *move_to_single_buffer(struct rte_mbuf *mbuf)
{
	struct rte_mbuf *copy;

	if (likely(mbuf->nb_segs == 1 && mbuf->pool == pool && RTE_MBUF_DIRECT(mbuf) &&
		   rte_mbuf_refcnt_read(mbuf) == 1))
		return mbuf;
	copy = rte_pktmbuf_copy(mbuf, pool, 0, UINT32_MAX);
	rte_pktmbuf_free(mbuf);
	if (copy && copy->nb_segs != 1) {
		rte_pktmbuf_free(copy);
		copy = NULL;
	}
	return copy;
}

/* Another core or the device has just written the packet. The next step reads its headers and
 * writes the metadata before them. A prefetch of the whole packet helps only if the packet arrives
 * alone, because the prefetches of a burst would wait for each other. */
static void prefetch(struct rte_mbuf *mbuf, bool alone)
{
	const char *packet = rte_pktmbuf_mtod(mbuf, const char *);
	uint32_t len = alone ? mbuf->data_len : 1;

	for (uint32_t at = 0; at < len; at += RTE_CACHE_LINE_SIZE)
		rte_prefetch0(packet + at);
	rte_prefetch0(packet - 1);
}

/* Returns the number of received packets. `oversized` counts packets too long for one buffer. */
static uint16_t receive(uint16_t port, struct descriptor *descriptors, uint16_t limit,
			uint64_t *oversized)
{
	struct rte_mbuf *mbufs[MAX_BURST];
	uint16_t received = rte_eth_rx_burst(port, 0, mbufs, RTE_MIN(limit, MAX_BURST));
	uint16_t taken = 0;

	for (uint16_t i = 0; i < received; i++) {
		struct rte_mbuf *mbuf = move_to_single_buffer(mbufs[i]);

		if (unlikely(!mbuf)) {
			(*oversized)++;
			continue;
		}
		descriptors[taken++] = (struct descriptor){
			.buffer = (uintptr_t)mbuf->buf_addr - base,
			.offset = mbuf->data_off,
			.len = mbuf->data_len,
		};
		prefetch(mbuf, received == 1);
	}
	return taken;
}

/* Returns how many packets the device accepted. The device accepts packets in order. */
static uint16_t transmit(uint16_t port, const struct descriptor *descriptors, uint16_t count)
{
	struct rte_mbuf *mbufs[MAX_BURST];
	uint16_t burst = RTE_MIN(count, MAX_BURST);

	for (uint16_t i = 0; i < burst; i++) {
		struct rte_mbuf *mbuf = mbuf_of(descriptors[i].buffer);

		mbuf->data_off = (uint16_t)descriptors[i].offset;
		mbuf->data_len = (uint16_t)descriptors[i].len;
		mbuf->pkt_len = descriptors[i].len;
		/* Functions may have changed what the receive offload flags describe. */
		mbuf->ol_flags = 0;
		mbufs[i] = mbuf;
	}
	return rte_eth_tx_burst(port, 0, mbufs, burst);
}

/* Takes `count` free buffers from the pool, or none if the pool has fewer. */
static bool take_buffers(uint64_t *buffers, uint16_t count)
{
	struct rte_mbuf *mbufs[MAX_BURST];

	if (count > MAX_BURST || rte_pktmbuf_alloc_bulk(pool, mbufs, count))
		return false;
	for (uint16_t i = 0; i < count; i++)
		buffers[i] = (uintptr_t)mbufs[i]->buf_addr - base;
	return true;
}

static void free_buffers(const uint64_t *buffers, uint16_t count)
{
	for (uint16_t i = 0; i < count; i++)
		rte_pktmbuf_free(mbuf_of(buffers[i]));
}

/* Returns the number of packets in the receive ring, or `unknown` if the driver does not report
 * it. */
static uint32_t count_received(uint16_t port, uint32_t unknown)
{
	int count = rte_eth_rx_queue_count(port, 0);

	return count < 0 ? unknown : (uint32_t)count;
}

/* Same layout as `Shim` in sys.rs. */
struct shim {
	int (*start)(int, char **, char *, size_t);
	void (*stop)(void);
	int (*make_pool)(uint32_t, uint32_t, uint32_t, struct pool_info *);
	void (*list_buffers)(uint64_t *, uint32_t);
	int (*probe)(const char *, char *, size_t);
	int (*open_port)(const char *, uint16_t, struct port_info *, char *, size_t);
	void (*close_port)(uint16_t);
	uint16_t (*receive)(uint16_t, struct descriptor *, uint16_t, uint64_t *);
	uint16_t (*transmit)(uint16_t, const struct descriptor *, uint16_t);
	bool (*take_buffers)(uint64_t *, uint16_t);
	void (*free_buffers)(const uint64_t *, uint16_t);
	uint32_t (*count_received)(uint16_t, uint32_t);
	const char *(*version)(void);
};

extern const struct shim myelin_dpdk;

const struct shim myelin_dpdk = {
	.start = start,
	.stop = stop,
	.make_pool = make_pool,
	.list_buffers = list_buffers,
	.probe = probe,
	.open_port = open_port,
	.close_port = close_port,
	.receive = receive,
	.transmit = transmit,
	.take_buffers = take_buffers,
	.free_buffers = free_buffers,
	.count_received = count_received,
	.version = rte_version,
};
