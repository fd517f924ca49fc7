//! All experiments: name, description, code and plots. The code of each is one file; `lookup` has
//! three more.

mod accounting;
mod bound;
pub(crate) mod calvin_advanced;
mod calvin_bandwidth;
mod calvin_chain;
mod calvin_cpu;
mod calvin_technologies;
mod chain_length;
mod classifier;
mod coding_loss;
pub(crate) mod deploy;
mod dpdk_port;
mod firewall;
mod framework;
mod hop_cost;
mod kernel_chain;
mod look_ups;
mod lookup;
mod peers;
mod policing;
mod rate_bucket;
mod rate_isolation;
mod rate_overhead;
mod rings;

use crate::Experiment;

pub(crate) const ALL: &[Experiment] = &[
    Experiment {
        name: "hop-cost",
        about: "round trip through one function at tcx, at XDP and over AF_XDP, against cable, bridge, router and bare forwarders",
        run: hop_cost::run,
        plots: include_str!("../plots/hop-cost.yaml"),
    },
    Experiment {
        name: "kernel-chain",
        about: "round trip and processing time of 1 to 32 kernel functions in one chain, at both hooks",
        run: kernel_chain::run,
        plots: include_str!("../plots/kernel-chain.yaml"),
    },
    Experiment {
        name: "classifier",
        about: "processing time with 10 to 10 000 chains at a port, 10 to 1000 firewall rules, and the cost of counting and stamping",
        run: lookup::run,
        plots: include_str!("../plots/classifier.yaml"),
    },
    Experiment {
        name: "deploy",
        about: "time of plan, up and down of five functions, time to load them, and resident memory of agent and worker",
        run: deploy::run,
        plots: include_str!("../plots/deploy.yaml"),
    },
    Experiment {
        name: "calvin-technologies",
        about: "round trip through FWD, ATS and XOR by every technology, inline and blocking (CALVIN, Fig. 11)",
        run: calvin_technologies::run,
        plots: include_str!("../plots/calvin-technologies.yaml"),
    },
    Experiment {
        name: "calvin-chain",
        about: "round trip through a kernel and a user-space function, compact and distributed, against the centralized approach",
        run: calvin_chain::run,
        plots: include_str!("../plots/calvin-chain.yaml"),
    },
    Experiment {
        name: "calvin-bandwidth",
        about: "highest UDP rate without loss or reordering through one and two functions, by workers of batch 1 and 32, against the centralized approach (CALVIN, Fig. 12b)",
        run: calvin_bandwidth::run,
        plots: include_str!("../plots/calvin-bandwidth.yaml"),
    },
    Experiment {
        name: "calvin-cpu",
        about: "CPU use by user, system, soft interrupts and idle of every technology, at a fixed rate and idle (CALVIN, Table I)",
        run: calvin_cpu::run,
        plots: include_str!("../plots/calvin-cpu.yaml"),
    },
    Experiment {
        name: "calvin-advanced",
        about: "processing time of coding, encryption, compression and inspection, 1 to 9 functions in parallel, against budgets of 5 and 20 us (CALVIN, Fig. 13)",
        run: calvin_advanced::run,
        plots: include_str!("../plots/calvin-advanced.yaml"),
    },
    Experiment {
        name: "coding-loss",
        about: "residual loss and in-order delay over links that lose 1 to 20 %, by themselves and in bursts: sliding window, block code, no code",
        run: coding_loss::run,
        plots: include_str!("../plots/coding-loss.yaml"),
    },
    Experiment {
        name: "chain-length",
        about: "round trips through 1 to 32 functions in every mapping, and the cost of each further one",
        run: chain_length::run,
        plots: include_str!("../plots/chain-length.yaml"),
    },
    Experiment {
        name: "dpdk-port",
        about: "a function between devices of DPDK against a bare DPDK forwarder: round trip and packet rate",
        run: dpdk_port::run,
        plots: include_str!("../plots/dpdk-port.yaml"),
    },
    Experiment {
        name: "peers",
        about: "one and two functions behind Open vSwitch (system, afxdp and dpdk ports) and in Myelin: round trips, CPU time, memory",
        run: peers::run,
        plots: include_str!("../plots/peers.yaml"),
    },
    Experiment {
        name: "framework",
        about: "processing time of 1 to 32 user-space functions that do nothing, at batches of 1, 8 and 32, and the cost of each further one",
        run: framework::run,
        plots: include_str!("../plots/framework.yaml"),
    },
    Experiment {
        name: "rings",
        about: "throughput of the descriptor ring between two cores, 64-byte descriptors, 32 at once, compared with DPDK's rte_ring (SP/SC)",
        run: rings::run,
        plots: include_str!("../plots/rings.yaml"),
    },
    Experiment {
        name: "look-ups",
        about: "processing time of router, load balancer and NAT in the kernel with 100 000 prefixes or flows: one hot flow, and flows drawn at random",
        run: look_ups::run,
        plots: include_str!("../plots/look-ups.yaml"),
    },
    Experiment {
        name: "rate-isolation",
        about: "two routers on one core, one flooded at ten times its profile: throughput of the other, without and with policing",
        run: rate_isolation::run,
        plots: include_str!("../plots/rate-isolation.yaml"),
    },
    Experiment {
        name: "rate-overhead",
        about: "throughput without control, with policer, with shaper, with both: ours against tc's; the policer's time by test runs",
        run: rate_overhead::run,
        plots: include_str!("../plots/rate-overhead.yaml"),
    },
    Experiment {
        name: "rate-bucket",
        about: "throughput and delay over bucket sizes: one router and eight, in processes, in the kernel and in namespaces, policer wider than shaper",
        run: rate_bucket::run,
        plots: include_str!("../plots/rate-bucket.yaml"),
    },
    Experiment {
        name: "bound",
        about: "random admissible sets of chains under the worst traffic that their profiles allow: longest delay against the worst-case bound",
        run: bound::run,
        plots: include_str!("../plots/bound.yaml"),
    },
];
