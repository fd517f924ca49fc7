/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The way of a packet over an impaired link:
 *
 *   end of the link          internal link without offloads          end of the link
 *   delay_enter ---------> near ======== far: delay_stamp
 *                                              |  AF_XDP socket
 *                                        delay line (worker)
 *                                              |
 *   delay_leave <--------- near ======== far --'
 *        '------------------------------------------------> redirect
 *
 * A service tag (IEEE 802.1ad) carries the number of the link's direction. On the internal link the
 * kernel segments super-packets, completes checksums, and puts the tag into the frame. Tags of
 * users stay behind this tag.
 */
#ifndef MYELIN_DELAY_H
#define MYELIN_DELAY_H

#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>

#include "counters.h"

#define DIRECTION_TAG bpf_htons(ETH_P_8021AD)
/* The tag's VLAN identifier. */
#define DIRECTION_MASK 0x0fff

/* `skb->mark` of a packet that comes from the delay line: the programs of the link's ends let it
 * pass. The kernel clears marks between namespaces, so no end host can set this mark. */
#define DELAYED_MARK 0x4d79646c

#endif
