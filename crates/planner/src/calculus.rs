//! Network calculus: bounds on delay and backlog that hold for every arrival that keeps to its profile.
//!
//! An [`ArrivalCurve`] says how much may arrive in any interval of a given length, a [`RateLatency`] service curve how much a
//! server does at least. From the two follow the greatest delay ([`delay`]) and how bursty the output is ([`after_delay`]). What several share is divided first: [`fcfs`], [`priority`],
//! [`round_robin`], [`fair_share`], [`cooperative`], and [`busy_period`] where nothing is known of the order. Along several
//! servers a burst is paid for once ([`tandem`]).
//!
//! The book is Le Boudec and Thiran, *Network Calculus*, Springer LNCS 2050, 2001; it is cited as LBT, with the numbers of
//! its theorems. [`paper_sum`] is the bound of Rathore et al. 2022, equation (4).
//!
//! All reckoning is in whole numbers and rounds towards the worse: a bound is never below the exact one, and what does not
//! fit into 128 bits has no bound (`None`). Amounts are in any one unit, rates in that unit a second, times in femtoseconds
//! ([`SECOND`]). Work of a processor is in femtoseconds of its time, so a whole core has the rate [`SECOND`].

mod arrival;
mod busy_period;
mod cooperative;
mod delay;
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
pub use cooperative::{Turn, cooperative};
pub use delay::delay;
pub use fair_share::fair_share;
pub use fcfs::fcfs;
pub use output::after_delay;
pub use paper_sum::paper_sum;
pub use priority::priority;
pub use round_robin::round_robin;
pub use service::RateLatency;
pub use tandem::{Passage, tandem};

pub(crate) use rounding::{mul_div_down, mul_div_up};

/// One second in femtoseconds, and the rate of a whole core.
pub const SECOND: u128 = 1_000_000_000_000_000;
