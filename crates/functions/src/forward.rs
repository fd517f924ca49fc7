//! `forward`: hands packets on unchanged.

use crate::{Emitter, Function, Packet, Verdict};

/// Hands packets on unchanged: a chain's cheapest function, to measure what a chain itself costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forward;

impl Function for Forward {
    #[inline]
    fn process(&mut self, _packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        Verdict::Forward
    }
}
