//! UNiS: Anthony, S. R. Chowdhury, T. Bai, R. Boutaba, J. François, "Non-intrusive and
//! Workflow-aware Virtual Network Function Scheduling in User-space", 2020.

use super::{Published, stated};

/// Throughput of poll-mode functions that share a core by the operating system, over that with a
/// core each: at most this, 64 bytes.
pub(crate) const OPERATING_SYSTEM: Published = stated(0.01, "Anthony et al., Section 3 on Fig. 1: \
    for both CFS and RT scheduler the throughput is about 1 % of line rate for 64 B packets");

/// Least throughput of UNiS over that of cooperative functions with `k` = 8.
pub(crate) const LIGHT: Published = stated(0.9, "Anthony et al., Section 5.2 on Fig. 4(a): the \
    deviation from the intrusive approach was no more than 10 % over all chain lengths");
/// The same.
pub(crate) const MEDIUM: Published = stated(0.975, "Anthony et al., Section 5.2 on Fig. 4(b): \
    the deviation is below 2.5 %");
/// The same, functions of two costs that take turns.
pub(crate) const MIXED: Published = stated(0.98, "Anthony et al., Section 5.3 on Fig. 7: UNiS \
    deviates less than 2 % for all chain lengths");

/// Throughput with `k` = 16 and 24 over that with 8: at most this.
pub(crate) const LONG_TURNS_LIGHT: Published = stated(1.0, "Anthony et al., Section 5.6 on \
    Fig. 9(a): both have lower throughput than k = 8, because of cache misses");
/// The same: at least this.
pub(crate) const LONG_TURNS_MEDIUM: Published = stated(1.0, "Anthony et al., Section 5.6 on \
    Fig. 9(b): a larger k gives a higher throughput");
/// Context switches over those with `k` = 8: at most this.
pub(crate) const SWITCHES: Published = stated(0.5, "Anthony et al., Section 5.6 on Fig. 10: less \
    than half of the context switches of k = 8");
/// Cycles of the slowest function over those with `k` = 8: at least this.
pub(crate) const CYCLES: Published = stated(1.0, "Anthony et al., Section 5.6 on Fig. 11: \
    marginally more CPU cycles than with k = 8");
/// Mean delay above that of cooperative functions, us.
pub(crate) const LIGHT_DELAY_US: Published = stated(14.0, "Anthony et al., Section 5.2 on \
    Fig. 5(a): 14 us additional latency on average");
/// Mean delay over that of cooperative functions: at most this.
pub(crate) const HEAVY_DELAY: Published = stated(1.0, "Anthony et al., Section 5.2 on Fig. 5: \
    the latency of heavy functions is lower with UNiS");

/// Functions on a core over those of cooperative functions, at least.
pub(crate) const DENSITY: Published = stated(0.9, "Anthony et al., Section 5.2 on Fig. 6: nearly \
    identical VNF density, deviating less than 10 % in few scenarios");

const TABLE_1: &str = "Anthony et al., Table 1";
/// Throughput of S1 and S2 in the configurations (a) to (c) with cooperative functions, Mpps.
pub(crate) const MULTI_COOPERATIVE: [[Option<Published>; 2]; 3] = [
    [Some(stated(5.31, TABLE_1)), Some(stated(5.31, TABLE_1))],
    [Some(stated(5.24, TABLE_1)), Some(stated(5.24, TABLE_1))],
    [Some(stated(5.41, TABLE_1)), None],
];
/// The same with UNiS.
pub(crate) const MULTI_UNIS: [[Option<Published>; 2]; 3] = [
    [Some(stated(5.30, TABLE_1)), Some(stated(5.21, TABLE_1))],
    [Some(stated(5.10, TABLE_1)), Some(stated(5.14, TABLE_1))],
    [Some(stated(5.34, TABLE_1)), None],
];

/// Without the occupancy rule: throughput with slices of 125 % of a ring over that with 75 %, light
/// and medium, at most.
pub(crate) const LONG_SLICE: [Published; 2] = [
    stated(0.88, "Anthony et al., Section 5.7 on Fig. 15(a): a sharp drop of 12 %"),
    stated(0.78, "Anthony et al., Section 5.7 on Fig. 15(a): a sharp drop of 22 %"),
];
/// The same with slices of 25 %.
pub(crate) const SHORT_SLICE: Published = stated(1.0, "Anthony et al., Section 5.7 on Fig. 15(a): \
    a small time slice does not have a significant impact on throughput");
/// With the rule, with slices of 25 or 125 % over that with 75 %.
pub(crate) const ANY_SLICE: Published = stated(1.0, "Anthony et al., Section 5.7 on Fig. 15(b): no \
    sharp drop when the time slice is either too small or too large");
/// Throughput with the rule over that without, functions whose cost is assumed wrongly.
pub(crate) const RULE: Published = stated(1.1, "Anthony et al., Section 5.7 on Fig. 14: as much \
    as 10 % with functions of variable cost");
