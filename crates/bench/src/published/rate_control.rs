//! Rate-controlled service disciplines: M. S. Rathore, N. Ahmad, R. Kohli, J. Iqbal, R. Alroobaea,
//! S. Hussain, S. S. Ullah, F. Umar, "In the Direction of Service Guarantees for Virtualized
//! Network Functions", 2022.

use super::{Published, stated};

/// Share of its rate that a router keeps next to an overloaded router, without policing.
pub(crate) const KEPT_UNPOLICED: Published = stated(55.0 / 300.0, "Rathore et al., Table 1: VR2 \
    gets 55 of 300 kpps while VR1 is offered 1000");
/// The same with policing.
pub(crate) const KEPT_POLICED: Published = stated(1.0, "Rathore et al., Section 7.2.3: all \
    routers get their rate although more is offered than the system can take");

/// Throughput with policer and shaper, as a share of the throughput without.
pub(crate) const THROUGHPUT_WITH_BOTH: [Published; 2] = [
    stated(1451.0 / 1730.0, "Rathore et al., Fig. 7(a): KVM 1730 -> 1451 kpps"),
    stated(1827.0 / 2052.0, "Rathore et al., Fig. 7(b): LXC 2052 -> 1827 kpps"),
];

/// Share of its target that the first of eight routers gets, with a policer of 20 packets and a
/// shaper of 1 to 5.
pub(crate) const TARGET_REACHED: Published = stated(1.0, "Rathore et al., Section 7.2.3 on \
    Fig. 11: KVM and LXC reach the target throughput of 900 kp/s");
/// Share of their limit that the limited routers get.
pub(crate) const LIMITED: Published = stated(1.0, "Rathore et al., Section 7.2.3: the others are \
    rate-limited to the desired throughput of 50 kp/s");
