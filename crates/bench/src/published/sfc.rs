//! SFC-OStack: Z. Xiang, dissertation, TU Dresden 2022, chapter 2.

use super::{Published, stated};

/// Time to render a chain, which the boot of the instances dominates, s.
pub(crate) const RENDERING_S: Published = stated(100.0, "Xiang, dissertation, Section 2.4: the \
    instances boot in about 100 s, whatever the length of the chain");
/// Gap of ten functions, ms.
pub(crate) const GAP_LB_MS: Published = stated(1100.0, "Xiang, dissertation, Fig. 2.4(b): about \
    1.1 s with LB");
/// The same: at most this.
pub(crate) const GAP_LBLC_MS: Published = stated(800.0, "Xiang, dissertation, Fig. 2.4(b): below \
    0.8 s with LBLC");
/// One-way delay of ten functions of kernel forwarding, LC over LB.
pub(crate) const LC_OVER_LB: Published = stated(0.8, "Xiang, dissertation, Fig. 2.5(a): LC is \
    20 % under LB");
const PYTHON_LBLC_MS: Published = stated(8.3, PYTHON);
const PYTHON_LB_MS: Published = stated(9.4, PYTHON);
/// One-way delay of nine functions in Python, LBLC over LB.
pub(crate) const LBLC_OVER_LB: Published = PYTHON_LBLC_MS.over(PYTHON_LB_MS);
const PYTHON: &str = "Xiang, dissertation, Fig. 2.5(b), nine functions: LBLC 8.3 ms, LB 9.4 ms";
