//! The key `mtu`, which several kinds have: the longest IP packet that may leave, bytes.

/// The least that may be asked for: what every IPv4 host must take (RFC 791, section 3.1).
pub const MIN_MTU: u16 = 576;
/// Where nothing is said: Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;
