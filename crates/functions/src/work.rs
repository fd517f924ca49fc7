//! `work`: occupies the core for a number of cycles per packet and per byte, and changes nothing.

use std::hint::black_box;

use myelin_spec::WorkConfig;

use crate::{Emitter, Function, Packet, Verdict};

/// Occupies the core with steps of an exclusive or and a multiplication. Each step depends on the
/// previous one. The kernel's program takes the same steps.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    config: WorkConfig,
}

impl Work {
    /// Makes the function with this configuration.
    pub fn new(config: WorkConfig) -> Self {
        Self { config }
    }
}

impl Function for Work {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let steps = self.config.steps(packet.len());
        let start = black_box(packet.len() as u64);
        black_box((0..steps).fold(start, |value, _| step(value)));
        Verdict::Forward
    }
}

/// Does one step. Its two operations differ, so the compiler cannot combine several steps.
#[inline(always)] // a call would lengthen the chain of dependent steps
fn step(value: u64) -> u64 {
    const BITS: u64 = 0x5555_5555_5555_5555;
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (value ^ BITS).wrapping_mul(FACTOR)
}
