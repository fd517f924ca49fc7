//! The sizes of packets on a node's links.

/// Largest IP packet on the links that Myelin makes, bytes.
pub(crate) const MTU: u32 = 1500;
/// Largest MTU of a port whose packets meet XDP programs or user-space functions, bytes. A packet
/// with its headers, its headroom and the kernel's own data must fit in one page.
pub(crate) const LARGEST_MTU: u32 = 3400;
