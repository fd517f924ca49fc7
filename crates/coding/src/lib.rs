//! Random linear network coding over GF(2^8).
//!
//! Source packets go out as they are (the code is systematic); now and then a *repair packet* goes with them, a linear
//! combination of the latest few. A receiver that misses a source packet works it out from a repair packet and the
//! others. A node on the way may make further combinations of what it received (*recoding*), which plain erasure codes
//! cannot do.
//!
//! The code is RFC 8681's: its field, its generator of coefficients, its identifiers. [`mod@wire`] says where the packets
//! differ from the RFC's, and why.
//!
//! This room is pure: no I/O, no clock, no packet headers. All memory is allocated when an [`Encoder`], [`Recoder`] or
//! [`Decoder`] is made, and nothing panics whatever comes in. Start reading at [`mod@kernel`], where the time goes.

pub mod coefficients;
pub mod decoder;
pub mod encoder;
pub mod field;
pub mod kernel;
pub mod recoder;
pub mod redundancy;
mod serial;
mod sums;
mod symbol;
pub mod tinymt32;
pub mod wire;

pub use decoder::{Arrival, Counters, Decoder, Delivered, Delivery};
pub use encoder::{Code, Encoder};
pub use kernel::{Kernel, Term};
pub use recoder::Recoder;
pub use redundancy::Redundancy;
pub use tinymt32::TinyMt32;
pub use wire::{Coded, MAX_WINDOW, RepairId};
