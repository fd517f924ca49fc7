// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Minimal eBPF forwarding: one helper call. It inspects no packet and counts nothing. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Same layout: myelin_bench::ebpf::Redirect. */
const volatile struct {
	/* Egress, an index in the namespace of the program's interface. */
	__u32 ifindex;
	__u32 spare;
} INSTANCE SEC(".rodata.instance");

SEC("xdp")
int redirect_xdp(struct xdp_md *ctx)
{
	return bpf_redirect(INSTANCE.ifindex, 0);
}

/* Sends a frame back: a minimal function in a separate namespace. */
SEC("xdp")
int bounce(struct xdp_md *ctx)
{
	return XDP_TX;
}

/* Drops frames at the far end. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* Redirects to the far end of the veth `ifindex`, without the transmit path of its near end. */
SEC("tc")
int redirect_peer(struct __sk_buff *ctx)
{
	return bpf_redirect_peer(INSTANCE.ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
