//! `forward`: forwards packets unchanged.

use crate::{Emitter, Function, Packet, Verdict};

/// Forwards packets unchanged. This function is the cheapest, so it shows the cost of a chain
/// alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forward;

impl Function for Forward {
    #[inline]
    fn process(&mut self, _packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        Verdict::Forward
    }
}
