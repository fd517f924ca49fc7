//! Searches the highest rate of a path without loss or reordering.
//!
//! [`run_trial`] sends a load and reports the arrivals. [`RateSearch`] chooses the rates to offer
//! in repeated trials.

mod rate_search;
mod trial;
mod trial_result;

pub use rate_search::RateSearch;
pub use trial::{Load, MAX_BURST, MAX_PACKETS, run_trial};
pub use trial_result::TrialResult;
