//! The service functions that run in user space.
//!
//! A [`Function`] sees packets and nothing else: not the port they came from, not the process it
//! runs in, no clock. It works in place on a [`Packet`], which has room in front and behind, says
//! whether the packet goes on ([`Verdict`]), and may send further packets ([`Emitter`]). A worker
//! hands it a [`Batch`] at a time, so that the dynamic call is paid once a batch.
//!
//! [`States::instantiate`] makes a function from its configuration and gives it its [`mod@state`].
//! Each kind is one file named after it; those that also exist in the kernel room give the same
//! bytes there, and both are tested on the same frames.
//!
//! This room does no I/O while packets are handled. Where a function is made, [`mod@dpi`] loads the
//! library that it needs, [`mod@aes_encrypt`] draws the salt of its session, and tables of flows draw
//! the seed of their hash. Start reading at [`mod@function`], then [`mod@xor`] for an example.

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
#[path = "../tests/common/ends.rs"]
mod ends;
pub mod firewall;
pub mod flow_page;
pub mod flow_table;
pub mod flow_tracker;
pub mod forward;
pub mod function;
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
mod time_exceeded;
pub mod timestamp;
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
pub use state::{Shared, States};
pub(crate) use stateful::Stateful;
pub use stateful::WithState;
