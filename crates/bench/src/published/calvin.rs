//! CALVIN: Z. Xiang, F. Gabriel, E. Urbano, G. T. Nguyen, M. Reisslein, F. H. P. Fitzek, "Reducing Latency in Virtual Machines:
//! Enabling Tactile Internet for Human-Machine Co-Working", IEEE JSAC 37(5), 2019; and chapter 3 of Xiang's dissertation
//! (TU Dresden, 2022), which reprints its figures.

use super::Published;

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
