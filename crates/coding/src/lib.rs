//! Random linear network coding over GF(2^8).
//!
//! Source packets pass unchanged (the code is systematic). At intervals, a *repair packet* follows:
//! a linear combination of the latest source packets. A receiver recovers a lost source packet from
//! a repair packet and the received source packets. An intermediate node may make new combinations
//! of the packets that it received (*recoding*), which plain erasure codes cannot do.
//!
//! The code uses the field, the generator of coefficients and the identifiers of RFC 8681.
//! [`mod@wire`] explains how the packets differ from the RFC's packets.
//!
//! This crate does no I/O and uses no clock and no packet headers. [`Encoder`], [`Recoder`] and
//! [`Decoder`] allocate all memory when they are made, and no input makes them panic. Start reading
//! at [`mod@kernel`], which takes most of the processor time.

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

pub use decoder::{Decoder, DecoderCounters, DeliveredPacket, Delivery, SourceAction};
pub use encoder::{Code, Encoder};
pub use kernel::{Kernel, Term};
pub use recoder::Recoder;
pub use redundancy::Redundancy;
pub use tinymt32::TinyMt32;
pub use wire::{CodedPayload, MAX_WINDOW, RepairId};
