//! Reads the key `mtu`.

use super::field::Fields;
use crate::error::Report;
use crate::mtu::{DEFAULT_MTU, MIN_MTU};

/// The longest IP packet, at most `max` bytes.
pub(super) fn read(fields: &Fields<'_>, max: u16, report: &mut Report<'_>) -> u16 {
    let range = u64::from(MIN_MTU)..=u64::from(max);
    let field = fields.get("mtu");
    let mtu = field.and_then(|field| field.integer(report, range, "bytes of an IP packet"));
    mtu.map_or(DEFAULT_MTU, |mtu| mtu as u16)
}
