// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The least that forwards a frame with eBPF: one helper call. Looks at no packet and counts
 * nothing. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Twin: myelin_bench::ebpf::Redirect. */
const volatile struct {
	__u32 ifindex; /* where frames leave, as the namespace of the program's interface numbers it
			*/
	__u32 spare;
} INSTANCE SEC(".rodata.instance");

SEC("xdp")
int redirect_xdp(struct xdp_md *ctx)
{
	return bpf_redirect(INSTANCE.ifindex, 0);
}

/* Back where it came from: the least that a function in a namespace of its own does. */
SEC("xdp")
int bounce(struct xdp_md *ctx)
{
	return XDP_TX;
}

/* The end of the way. */
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* To the far end of the veth `ifindex`, past its near end's transmit path. */
SEC("tc")
int redirect_peer(struct __sk_buff *ctx)
{
	return bpf_redirect_peer(INSTANCE.ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
