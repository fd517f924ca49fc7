//! CALVIN: Z. Xiang, F. Gabriel, E. Urbano, G. T. Nguyen, M. Reisslein, F. H. P. Fitzek, "Reducing
//! Latency in Virtual Machines: Enabling Tactile Internet for Human-Machine Co-Working", IEEE JSAC
//! 37(5), 2019. Chapter 3 of Xiang's dissertation (TU Dresden, 2022) reprints its figures.

use super::Published;

/// ATS and XOR over FWD, every technology.
pub(crate) const FUNCTION_OF_FORWARD: Published = Published {
    value: 1.0,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"equivalent to the respective RTTs for the elementary FWD VNF\"",
};

/// Kernel forwarding over XDP, 1400 B.
pub(crate) const KERNEL_FORWARDING_OF_XDP: Published = Published {
    value: 1.1,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"XDP FWD is around 10% faster than LKF FWD for large packets\"",
};

/// DPDK over XDP, 256 B.
pub(crate) const DPDK_OF_XDP_SMALL: Published = Published {
    value: 1.0,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"very similar for the small 256 bytes packet size\"",
};

/// DPDK over XDP, 1400 B.
pub(crate) const DPDK_OF_XDP_LARGE: Published = Published {
    value: 1.5,
    source: "CALVIN, Section IV-B1 on Fig. 11: \"substantially longer (about 50% longer) RTTs\"",
};

/// The centralized approach over CALVIN's two functions, for 256 and 1400 B.
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

/// Mean time of coding 1400 B with a sliding window, nine in parallel on four cores, us. An upper
/// bound.
pub(crate) const WINDOW_CODING_US: Published = Published {
    value: 7.0,
    source: "CALVIN, Section V-D on Fig. 13: nine in parallel \"remain below 7 us\"",
};

/// Mean time of AES for 1400 B, alone on a core, us. A lower bound.
pub(crate) const AES_US: Published = Published {
    value: 20.0,
    source: "CALVIN, Section V-D on Fig. 13: not within 20 us even with exclusive access to a core",
};

/// Bandwidth of CALVIN's two functions over that of the centralized approach, by payload, bytes.
/// Only the payloads of the text.
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

/// Table I: user, system, guest and idle, shares of four cores, of the centralized approach and of
/// CALVIN.
pub(crate) const CPU_SHARES: [[f64; 4]; 2] =
    [[0.252, 0.472, 0.029, 0.247], [0.252, 0.230, 0.022, 0.496]];

/// Budget of the edge cloud within one millisecond, us (Section I, Fig. 2, after 3GPP TR 22.804).
pub(crate) const BUDGET_US: f64 = 350.0;
