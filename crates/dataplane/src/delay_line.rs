//! The delay line: a worker that emulates links with delay, jitter, rate, queue and loss.
//!
//! One socket takes the packets of all impaired links of a node. A service tag in the frame has the
//! number of the link's direction. The metadata in front of the frame has the time of arrival, so
//! the delay does not depend on the time at which the worker wakes up. A packet waits in its frame
//! until its departure. It then leaves through the same socket with the same tag.
//!
//! ```text
//! socket --> tag, time of arrival --> link model of the direction --> heap by departure --> socket
//!            | bad tag                | queue full, lost              | memory full
//! ```
//!
//! The agent ([`DelayLine`]) writes the profiles of directions into shared memory ([`DelayTable`]),
//! and the worker ([`delay_line_main`]) reads a profile when its generation changes. The worker
//! writes counters and its lateness into the same memory.

mod handle;
mod line;
mod placement;
mod table;
mod worker;

pub use handle::DelayLine;
pub use table::{DelayLineStats, DelayTable, DirectionStats, MAX_DIRECTION};
pub use worker::delay_line_main;
