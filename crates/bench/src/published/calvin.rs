//! CALVIN: Z. Xiang, F. Gabriel, E. Urbano, G. T. Nguyen, M. Reisslein, F. H. P. Fitzek, "Reducing Latency in Virtual Machines:
//! Enabling Tactile Internet for Human-Machine Co-Working", IEEE JSAC 37(5), 2019; and chapter 3 of Xiang's dissertation
//! (TU Dresden, 2022), which reprints its figures.

use super::{Figure, FigurePoint, Published};

/// ATS and XOR against FWD, every technology.
pub(crate) const FUNCTION_OF_FORWARD: Published = Published {
    value: 1.0,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"equivalent to the respective RTTs for the elementary FWD VNF\"",
};

/// Kernel forwarding against XDP, 1400 B.
pub(crate) const KERNEL_FORWARDING_OF_XDP: Published = Published {
    value: 1.1,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"XDP FWD is around 10% faster than LKF FWD for large packets\"",
};

/// DPDK against XDP, 256 B.
pub(crate) const DPDK_OF_XDP_SMALL: Published = Published {
    value: 1.0,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"very similar for the small 256 bytes packet size\"",
};

/// DPDK against XDP, 1400 B.
pub(crate) const DPDK_OF_XDP_LARGE: Published = Published {
    value: 1.5,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"substantially longer (about 50% longer) RTTs\"",
};

/// The centralized approach against CALVIN's two functions, for 256 and 1400 B.
pub(crate) const CENTRALIZED_OF_CALVIN: [Published; 2] = [
    Published {
        value: 2.30 / 0.19,
        source: "CALVIN, Section IV-B2a on Fig. 12(a): mean RTTs of 2.30 ms and 0.19 ms",
    },
    Published {
        value: 2.39 / 0.32,
        source: "CALVIN, Section IV-B2a on Fig. 12(a): mean RTTs of 2.39 ms and 0.32 ms",
    },
];

/// What coding 1400 B over a sliding window took with nine in parallel on four cores, mean, us: at most this.
pub(crate) const WINDOW_CODING_US: Published = Published {
    value: 7.0,
    source: "CALVIN, Section V-D on Fig. 13: nine in parallel \"remain below 7 us\"",
};

/// What AES of 1400 B took alone on a core, mean, us: at least this.
pub(crate) const AES_US: Published = Published {
    value: 20.0,
    source: "CALVIN, Section V-D on Fig. 13: not within 20 us even with exclusive access to a core",
};

/// CALVIN's two functions' bandwidth against the centralized approach's, by payload, bytes, as far as the text goes.
pub(crate) const BANDWIDTH_OF_CENTRALIZED: [(usize, Published); 2] = [
    (
        256,
        Published {
            value: 1.4 / 6.0,
            source: "CALVIN, Section IV-B2b on Fig. 12(b): the least of \"1.4-1.7 Mbits/s\" against \"a minimal supported bandwidth around 6 Mbits/s\"",
        },
    ),
    (
        1400,
        Published {
            value: 1.0 / 15.0,
            source: "CALVIN, Section IV-B2b on Fig. 12(b): the centralized approach is \"over 15 times higher\"",
        },
    ),
];

/// Table I: user, system, guest and idle, shares of four cores, of the centralized approach and of CALVIN.
pub(crate) const CPU_SHARES: [[f64; 4]; 2] =
    [[0.252, 0.472, 0.029, 0.247], [0.252, 0.230, 0.022, 0.496]];

/// What the edge cloud may take of a millisecond, us (Section I, Fig. 2, after 3GPP TR 22.804).
pub(crate) const BUDGET_US: f64 = 350.0;

/// Fig. 11.
pub(crate) const TECHNOLOGIES: Figure = Figure {
    source: "CALVIN, Fig. 11",
    about: "One function in a virtual machine of OpenStack, sleeping client and server on another node",
    axis: "round trip, mean, us",
    points: &[
        FigurePoint {
            panel: "256",
            group: "XDP",
            series: "FWD",
            value: 120.0,
            how: "Section VI: \"XDP achieved latencies of 120 us for small payloads\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "256",
            group: "XDP",
            series: "XOR",
            value: 120.0,
            how: "Section IV-B1: \"equivalent to the respective RTTs\" of FWD",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "256",
            group: "kernel forwarding",
            series: "FWD",
            value: 120.0,
            how: "Section IV-B1: \"XDP and LKF have the same FWD RTTs for small packets\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "256",
            group: "DPDK",
            series: "FWD",
            value: 120.0,
            how: "Section IV-B1: in-kernel and user-space RTTs \"very similar for the small 256 bytes packet size\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "XDP",
            series: "FWD",
            value: 180.0,
            how: "Section VI: \"and 180 us for large payloads\"; no ATS nor XOR, which XDP could not do then",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "kernel forwarding",
            series: "FWD",
            value: 198.0,
            how: "1.1 times XDP: \"around 10%\", Sections IV-B1 and VI",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "DPDK",
            series: "FWD",
            value: 270.0,
            how: "1.5 times XDP: \"about 50% longer\", Section IV-B1; \"up to 50%\", Section VI",
            ..FigurePoint::NONE
        },
    ],
};

const TWO_FUNCTIONS: &str = "XDP FWD and DPDK FWD in two virtual machines; the centralized approach: one FWD in a machine of the same size";

/// Fig. 12(a): means.
pub(crate) const CHAIN_ROUND_TRIPS: Figure = Figure {
    source: "CALVIN, Fig. 12(a)",
    about: TWO_FUNCTIONS,
    axis: "round trip, mean, us",
    points: &[
        FigurePoint {
            panel: "256",
            group: "CALVIN",
            value: 190.0,
            how: "Section IV-B2a: \"0.19 ms\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "256",
            group: "centralized",
            value: 2300.0,
            how: "Section IV-B2a: \"2.30 ms\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "CALVIN",
            value: 320.0,
            how: "Section IV-B2a: \"0.32 ms\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "centralized",
            value: 2390.0,
            how: "Section IV-B2a: \"2.39 ms\"",
            ..FigurePoint::NONE
        },
    ],
};

/// Fig. 12(a): points of the distributions that the text states.
pub(crate) const CHAIN_DISTRIBUTION: Figure = Figure {
    source: "CALVIN, Fig. 12(a)",
    about: TWO_FUNCTIONS,
    axis: "round trip, us",
    points: &[
        FigurePoint {
            panel: "256",
            series: "CALVIN",
            value: 250.0,
            share: 0.9,
            how: "Section V-D: \"0.25 ms 90%ile RTT\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "256",
            series: "CALVIN",
            value: BUDGET_US,
            share: 1.0,
            how: "Section IV-B2a: \"nearly 100% for 256 bytes packets\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            series: "CALVIN",
            value: BUDGET_US,
            share: 0.7,
            how: "Section IV-B2a: \"about 70% probability for 1400 bytes packets\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            series: "centralized",
            value: BUDGET_US,
            share: 0.0,
            how: "Section IV-B2a: \"exceeds the 0.35 ms delay threshold in the best case\"",
            ..FigurePoint::NONE
        },
    ],
};

/// Fig. 12(a): shares within the budget.
pub(crate) const CHAIN_WITHIN_BUDGET: Figure = Figure {
    source: "CALVIN, Fig. 12(a)",
    about: TWO_FUNCTIONS,
    axis: "share of packets within 0.35 ms, 0 to 1",
    points: &[
        FigurePoint {
            panel: "256",
            group: "CALVIN",
            value: 1.0,
            how: "Section IV-B2a: \"nearly 100% for 256 bytes packets\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            panel: "1400",
            group: "CALVIN",
            value: 0.7,
            how: "Section IV-B2a: \"about 70% probability for 1400 bytes packets\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            group: "centralized",
            value: 0.0,
            how: "Section IV-B2a: \"exceeds the 0.35 ms delay threshold in the best case\"",
            ..FigurePoint::NONE
        },
    ],
};

/// Fig. 12(b).
pub(crate) const BANDWIDTH: Figure = Figure {
    source: "CALVIN, Fig. 12(b)",
    about: TWO_FUNCTIONS,
    axis: "bandwidth, Mbit/s",
    points: &[
        FigurePoint {
            group: "256",
            series: "CALVIN",
            value: 1.4,
            range: Some((1.4, 1.7)),
            how: "Section IV-B2b: \"1.4-1.7 Mbits/s\" over all payloads; the least is put at the smallest",
            ..FigurePoint::NONE
        },
        FigurePoint {
            group: "1400",
            series: "CALVIN",
            value: 1.7,
            range: Some((1.4, 1.7)),
            how: "Section IV-B2b: \"1.4-1.7 Mbits/s\" over all payloads; the most is put at the largest",
            ..FigurePoint::NONE
        },
        FigurePoint {
            group: "256",
            series: "centralized",
            value: 6.0,
            how: "Section IV-B2b: \"a minimal supported bandwidth around 6 Mbits/s\"",
            ..FigurePoint::NONE
        },
        FigurePoint {
            group: "1400",
            series: "centralized",
            value: 15.0 * 1.7,
            how: "Section IV-B2b: \"over 15 times higher than the CALVIN bandwidth\", of 1.7 Mbit/s",
            ..FigurePoint::NONE
        },
    ],
};

/// Table I.
pub(crate) const CPU_USE: Figure = Figure {
    source: "CALVIN, Table I",
    about: "four cores of the compute node with the functions, mpstat over 10 min; the hosts stood on another node",
    axis: "share of all cores, 0 to 1",
    points: &[
        share("centralized", "user", CPU_SHARES[0][0]),
        share("centralized", "system", CPU_SHARES[0][1]),
        share("centralized", "guest", CPU_SHARES[0][2]),
        share("centralized", "idle", CPU_SHARES[0][3]),
        share("CALVIN", "user", CPU_SHARES[1][0]),
        share("CALVIN", "system", CPU_SHARES[1][1]),
        share("CALVIN", "guest", CPU_SHARES[1][2]),
        share("CALVIN", "idle", CPU_SHARES[1][3]),
    ],
};

const fn share(group: &'static str, series: &'static str, value: f64) -> FigurePoint {
    FigurePoint {
        group,
        series,
        value,
        how: "as the table has it",
        ..FigurePoint::NONE
    }
}
