//! CALVIN: Z. Xiang, F. Gabriel, E. Urbano, G. T. Nguyen, M. Reisslein, F. H. P. Fitzek, "Reducing
//! Latency in Virtual Machines: Enabling Tactile Internet for Human-Machine Co-Working", IEEE JSAC
//! 37(5), 2019. Chapter 3 of Xiang's dissertation (TU Dresden, 2022) reprints its figures.
//!
//! Pairs are for payloads of 256 and 1400 B.

use myelin_report::experiment::{Figure, FigurePoint};

use super::{Published, stated};

/// Budget of the edge cloud within one millisecond, us (Section I, Fig. 2, after 3GPP TR 22.804).
pub(crate) const BUDGET_US: f64 = 350.0;
/// Budget of a function within it, us (Section V-C).
pub(crate) const FUNCTION_BUDGET_US: f64 = 20.0;

/// Time until the pendulum stands with a delay of 40 ms, s.
pub(crate) const PENDULUM_STANDS_S: Published = stated(3.0, "Xiang, dissertation, Section 3.1 on \
    Fig. 3.1 (CALVIN, Fig. 1): \"reduced to 40 ms, the pendulum can reach the stability after about 3 \
    seconds\"");

/// Mean round trip of XDP FWD, us.
const XDP_US: [Published; 2] = [
    stated(120.0, "CALVIN, Section VI: \"XDP achieved latencies of 120 us for small payloads\""),
    stated(180.0, "CALVIN, Section VI: \"and 180 us for large payloads\""),
];
/// ATS and XOR over FWD, every technology.
pub(crate) const FUNCTION_OF_FORWARD: Published = stated(1.0, "CALVIN, Section IV-B1 on Fig. 11: \
    \"equivalent to the respective RTTs for the elementary FWD VNF\"");
/// Kernel forwarding over XDP, 256 B.
const KERNEL_FORWARDING_OF_XDP_SMALL: Published = stated(1.0, "CALVIN, Section IV-B1 on Fig. 11: \
    \"XDP and LKF have the same FWD RTTs for small packets\"");
/// Kernel forwarding over XDP, 1400 B.
pub(crate) const KERNEL_FORWARDING_OF_XDP: Published = stated(1.1, "CALVIN, Section IV-B1 on \
    Fig. 11: \"XDP FWD is around 10% faster than LKF FWD for large packets\"");
/// DPDK over XDP, 256 B.
pub(crate) const DPDK_OF_XDP_SMALL: Published = stated(1.0, "CALVIN, Section IV-B1 on Fig. 11: \
    \"very similar for the small 256 bytes packet size\"");
/// DPDK over XDP, 1400 B.
pub(crate) const DPDK_OF_XDP_LARGE: Published = stated(1.5, "CALVIN, Section IV-B1 on Fig. 11: \
    \"substantially longer (about 50% longer) RTTs\"");

const MEANS: [&str; 2] = [
    "CALVIN, Section IV-B2a on Fig. 12(a): mean RTTs of 2.30 ms and 0.19 ms",
    "CALVIN, Section IV-B2a on Fig. 12(a): mean RTTs of 2.39 ms and 0.32 ms",
];
/// Mean round trip of the centralized approach, us.
const CENTRALIZED_US: [Published; 2] = [stated(2300.0, MEANS[0]), stated(2390.0, MEANS[1])];
/// The same of CALVIN's two functions.
const CHAIN_US: [Published; 2] = [stated(190.0, MEANS[0]), stated(320.0, MEANS[1])];
pub(crate) const CENTRALIZED_OF_CALVIN: [Published; 2] =
    [CENTRALIZED_US[0].over(CHAIN_US[0]), CENTRALIZED_US[1].over(CHAIN_US[1])];

/// 90th percentile of CALVIN's round trips, 256 B, us.
const CHAIN_P90_US: Published = stated(250.0, "CALVIN, Section V-D: \"0.25 ms 90%ile RTT\"");
/// Share of round trips within [`BUDGET_US`].
const CHAIN_IN_BUDGET: [Published; 2] = [
    stated(1.0, "CALVIN, Section IV-B2a: \"nearly 100% for 256 bytes packets\""),
    stated(0.7, "CALVIN, Section IV-B2a: \"about 70% probability for 1400 bytes packets\""),
];
const CENTRALIZED_IN_BUDGET: Published =
    stated(0.0, "CALVIN, Section IV-B2a: \"exceeds the 0.35 ms delay threshold in the best case\"");

/// A point of a distribution: the share of packets within the budget.
const fn in_budget(share: FigurePoint) -> FigurePoint {
    FigurePoint { value: BUDGET_US, share: share.value, ..share }
}

const LEAST_BANDWIDTHS: &str = "CALVIN, Section IV-B2b on Fig. 12(b): the least of \"1.4-1.7 \
    Mbits/s\" against \"a minimal supported bandwidth around 6 Mbits/s\"";
/// Bandwidth of CALVIN's two functions: the least at the smallest payload, the most at the largest.
const CHAIN_MBIT_S: [Published; 2] = [
    stated(1.4, LEAST_BANDWIDTHS),
    stated(1.7, "CALVIN, Section IV-B2b on Fig. 12(b): the most of \"1.4-1.7 Mbits/s\""),
];
const RANGE_MBIT_S: Option<(f64, f64)> = Some((CHAIN_MBIT_S[0].value, CHAIN_MBIT_S[1].value));
/// Bandwidth of the centralized approach, 256 B.
const CENTRALIZED_MBIT_S: Published = stated(6.0, LEAST_BANDWIDTHS);
/// The same over that of CALVIN's two functions, 1400 B.
const CENTRALIZED_BANDWIDTH: Published = stated(15.0, "CALVIN, Section IV-B2b on Fig. 12(b): the \
    centralized approach is \"over 15 times higher\"");
/// Bandwidth of CALVIN's two functions over that of the centralized approach, by payload, bytes.
/// Only the payloads of the text.
pub(crate) const BANDWIDTH_OF_CENTRALIZED: [(usize, Published); 2] = [
    (256, CHAIN_MBIT_S[0].over(CENTRALIZED_MBIT_S)),
    (1400, stated(1.0 / CENTRALIZED_BANDWIDTH.value, CENTRALIZED_BANDWIDTH.source)),
];

/// Mean time of coding 1400 B with a sliding window, nine in parallel on four cores, us. An upper
/// bound.
pub(crate) const WINDOW_CODING_US: Published =
    stated(7.0, "CALVIN, Section V-D on Fig. 13: nine in parallel \"remain below 7 us\"");
/// Mean time of AES for 1400 B, alone on a core, us. A lower bound.
pub(crate) const AES_US: Published = stated(FUNCTION_BUDGET_US, "CALVIN, Section V-D on Fig. 13: \
    not within 20 us even with exclusive access to a core");

/// Table I: user, system, guest and idle, shares of four cores, of the centralized approach and of
/// CALVIN.
pub(crate) const CPU_SHARES: [[f64; 4]; 2] =
    [[0.252, 0.472, 0.029, 0.247], [0.252, 0.230, 0.022, 0.496]];

const fn cpu(chain: usize, column: usize) -> FigurePoint {
    let (group, series) = (["centralized", "CALVIN"], ["user", "system", "guest", "idle"]);
    let share = stated(CPU_SHARES[chain][column], "CALVIN, Table I");
    share.at("", group[chain], series[column])
}

const TWO_MACHINES: &str = "XDP FWD and DPDK FWD in two virtual machines; the centralized \
    approach: one FWD in a machine of the same size";

/// The figures, by the names that plots use.
pub(crate) const FIGURES: [Figure; 6] = [
    Figure {
        name: "calvin-fig-11", source: "CALVIN, Fig. 11", axis: "round trip, mean, us",
        about: "One function in a virtual machine of OpenStack, sleeping client and server on \
            another node",
        points: &[
            XDP_US[0].at("256", "XDP", "FWD"),
            FUNCTION_OF_FORWARD.times(XDP_US[0]).at("256", "XDP", "XOR"),
            KERNEL_FORWARDING_OF_XDP_SMALL.times(XDP_US[0]).at("256", "kernel forwarding", "FWD"),
            DPDK_OF_XDP_SMALL.times(XDP_US[0]).at("256", "DPDK", "FWD"),
            // No ATS or XOR: XDP did not support them then.
            XDP_US[1].at("1400", "XDP", "FWD"),
            KERNEL_FORWARDING_OF_XDP.times(XDP_US[1]).at("1400", "kernel forwarding", "FWD"),
            DPDK_OF_XDP_LARGE.times(XDP_US[1]).at("1400", "DPDK", "FWD"),
        ],
    },
    Figure {
        name: "calvin-fig-12a-mean", source: "CALVIN, Fig. 12(a)", about: TWO_MACHINES,
        axis: "round trip, mean, us",
        points: &[
            CHAIN_US[0].at("256", "CALVIN", ""),
            CENTRALIZED_US[0].at("256", "centralized", ""),
            CHAIN_US[1].at("1400", "CALVIN", ""),
            CENTRALIZED_US[1].at("1400", "centralized", ""),
        ],
    },
    Figure {
        name: "calvin-fig-12a-distribution", source: "CALVIN, Fig. 12(a)", about: TWO_MACHINES,
        axis: "round trip, us",
        points: &[
            FigurePoint { share: 0.9, ..CHAIN_P90_US.at("256", "", "CALVIN") },
            in_budget(CHAIN_IN_BUDGET[0].at("256", "", "CALVIN")),
            in_budget(CHAIN_IN_BUDGET[1].at("1400", "", "CALVIN")),
            in_budget(CENTRALIZED_IN_BUDGET.at("", "", "centralized")),
        ],
    },
    Figure {
        name: "calvin-fig-12a-budget", source: "CALVIN, Fig. 12(a)", about: TWO_MACHINES,
        axis: "share of packets within 0.35 ms, 0 to 1",
        points: &[
            CHAIN_IN_BUDGET[0].at("256", "CALVIN", ""),
            CHAIN_IN_BUDGET[1].at("1400", "CALVIN", ""),
            CENTRALIZED_IN_BUDGET.at("", "centralized", ""),
        ],
    },
    Figure {
        name: "calvin-fig-12b", source: "CALVIN, Fig. 12(b)", about: TWO_MACHINES,
        axis: "bandwidth, Mbit/s",
        points: &[
            FigurePoint { range: RANGE_MBIT_S, ..CHAIN_MBIT_S[0].at("", "256", "CALVIN") },
            FigurePoint { range: RANGE_MBIT_S, ..CHAIN_MBIT_S[1].at("", "1400", "CALVIN") },
            CENTRALIZED_MBIT_S.at("", "256", "centralized"),
            CENTRALIZED_BANDWIDTH.times(CHAIN_MBIT_S[1]).at("", "1400", "centralized"),
        ],
    },
    Figure {
        name: "calvin-table-1", source: "CALVIN, Table I", axis: "share of all cores, 0 to 1",
        about: "four cores of the compute node with the functions, mpstat over 10 min; the hosts \
            were on another node",
        points: &[
            cpu(0, 0), cpu(0, 1), cpu(0, 2), cpu(0, 3), cpu(1, 0), cpu(1, 1), cpu(1, 2), cpu(1, 3),
        ],
    },
];
