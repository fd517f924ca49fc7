//! Network calculus: bounds on delay and burstiness for every arrival within its profile.
//!
//! An [`ArrivalCurve`] bounds the work that arrives in any interval; a [`RateLatency`] service
//! curve is the least work that a server does. [`delay()`] bounds the delay, [`after_delay`] the
//! burstiness of the output. The leftover service of one flow at a shared server depends on the
//! scheduler: [`fcfs`], [`priority`], [`round_robin`], [`fair_share`], cooperative
//! turns ([`Round`]).
//! [`earliest_deadline`] bounds delays under earliest deadline first, [`busy_with_turns`] the time
//! with work. [`busy_period`] is valid for
//! any order. [`tandem`] counts a burst once along several servers.
//!
//! Proofs: `docs/guarantees/proofs.md`. LBT is Le Boudec and Thiran, *Network Calculus*, Springer
//! LNCS 2050, 2001. [`paper_sum`] is equation (4) of Rathore et al. 2022.
//!
//! All figures are integers and rounded so that a bound is never too small. A result beyond 128
//! bits is no bound (`None`). Amounts have any unit, rates the same unit a second; times are in
//! femtoseconds ([`SECOND`]). A processor's work is in femtoseconds of its time, so a whole core
//! has the rate [`SECOND`].

mod arrival;
mod busy_period;
mod cooperative;
mod delay;
mod earliest_deadline;
mod fair_share;
mod fcfs;
mod output;
mod paper_sum;
mod priority;
mod round_robin;
mod rounding;
mod service;
mod tandem;

pub use arrival::{ArrivalCurve, LeakyBucket};
pub use busy_period::busy_period;
pub use cooperative::{Round, Turn};
pub use delay::delay;
pub use earliest_deadline::{DeadlineBound, DeadlineTask, busy_with_turns, earliest_deadline};
pub use fair_share::fair_share;
pub use fcfs::fcfs;
pub use output::after_delay;
pub use paper_sum::paper_sum;
pub use priority::priority;
pub use round_robin::round_robin;
pub use service::RateLatency;
pub use tandem::{TandemServer, tandem};

pub(crate) use rounding::{mul_div_down, mul_div_up};

/// One second in femtoseconds, and the rate of a whole core.
pub const SECOND: u128 = 1_000_000_000_000_000;
