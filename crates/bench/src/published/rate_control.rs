//! Rate-controlled service disciplines: M. S. Rathore, N. Ahmad, R. Kohli, J. Iqbal, R. Alroobaea, S. Hussain, S. S. Ullah,
//! F. Umar, "In the Direction of Service Guarantees for Virtualized Network Functions", 2022.

use super::Published;

/// Share of its rate that a router keeps beside an overloaded one, without policing.
pub(crate) const KEPT_UNPOLICED: Published = Published {
    value: 55.0 / 300.0,
    source: "Rathore et al., Table 1: VR2 gets 55 of 300 kpps while VR1 is offered 1000",
};

/// The same with policing.
pub(crate) const KEPT_POLICED: Published = Published {
    value: 1.0,
    source: "Rathore et al., Section 7.2.3: all routers get their rate although more is offered than the system can take",
};
