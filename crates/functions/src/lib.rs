//! The service functions that run in user space.
//!
//! A [`Function`] works on packets alone. It knows no port, no process and no clock. It changes a
//! [`Packet`] in place, in a buffer with headroom and tailroom. It returns a [`Verdict`], and may
//! send further packets through an [`Emitter`]. A worker calls the function with a [`Batch`], so
//! each batch costs one dynamic call.
//!
//! [`States::instantiate`] makes a function from its configuration, with its [`mod@state`]. Each
//! function kind has a file with the kind's name. A kind that also runs in the kernel produces the
//! same bytes in the kernel; tests compare the two implementations on the same frames.
//!
//! This crate does no I/O while it processes packets. When a function is made, [`mod@dpi`] loads
//! its library, [`mod@aes_encrypt`] draws the salt of its session, and flow tables draw the seed of
//! their hash. Start reading at [`mod@function`], then [`mod@xor`] as an example.

pub mod aes;
pub mod aes_decrypt;
pub mod aes_encrypt;
pub mod batch;
pub mod compress;
pub mod compression;
mod datagram;
pub mod decompress;
pub mod dpi;
pub mod emitter;
#[cfg(test)]
#[path = "../tests/common/endpoints.rs"]
mod endpoints;
pub mod firewall;
pub mod flow_page;
pub mod flow_table;
pub mod flow_tracker;
pub mod forward;
pub mod function;
pub mod icmp_error;
mod ip_header;
pub mod load_balancer;
pub mod lossy_link;
pub mod monitor;
pub mod nat;
pub mod packet;
mod registry;
pub mod rlnc;
pub mod router;
pub mod state;
mod stateful;
pub mod timestamp;
mod translated_fragments;
mod wide;
mod word;
pub mod work;
pub mod xor;

pub use batch::Batch;
pub use emitter::{Discard, Emitter};
pub use flow_page::FlowPage;
pub use function::{Function, Verdict};
pub use packet::Packet;
pub use registry::{Error, instantiate};
pub use state::{SharedState, States};
pub(crate) use stateful::Stateful;
pub use stateful::WithState;
