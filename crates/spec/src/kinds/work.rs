//! `work`: takes time and does nothing else, for experiments.

use super::prelude::*;

config! {
    /// Configuration of a `work` function.
    #[derive(Copy)]
    pub struct WorkConfig {
        /// cycles that each packet takes
        "cycles" cycles: u32 = integer(0, 100_000, "a number of cycles").required();
        /// cycles that each byte of the frame takes besides; together at most 200000 a packet
        "cyclesPerByte" cycles_per_byte: u32 = integer(0, 100, "a number of cycles").or("0");
    }
}

/// Cycles of one step: an exclusive or takes 1 and a multiplication of 64 bits 3, on x86-64 since 2008, and each waits for the one before.
const CYCLES_PER_STEP: u64 = 4;
/// Most cycles that a packet takes: the verifier goes through each step.
const MAX_CYCLES: u64 = 200_000;
/// The clock that costs are reckoned with, cycles a nanosecond.
const NOMINAL_GHZ: f64 = 3.0;

impl WorkConfig {
    /// Steps that a frame of so many bytes takes.
    #[inline]
    pub fn steps(&self, bytes: usize) -> u64 {
        let per_byte = u64::from(self.cycles_per_byte) * bytes as u64;
        let cycles = (u64::from(self.cycles) + per_byte).min(MAX_CYCLES);
        cycles.div_ceil(CYCLES_PER_STEP)
    }
}

/// `work`.
pub static WORK: Kind = Kind {
    name: "work",
    class: Class::Basic,
    kernel: Some(Cost::new(3.0, 0.0)),
    user: Some(Cost::new(2.0, 0.0)),
    config: WorkConfig::KEYS,
    description: "Keeps the core busy for given cycles a packet and a byte, and hands packets on unchanged: a function of any price, for \
                  experiments. Cycles are counted in steps of 4, of dependent operations on registers.",
    example: "{ name: busy, kind: work, config: { cycles: 150 } }",
    kernel_constants: Some(|config| match config {
        FunctionConfig::Work(config) => {
            vec![config.cycles.into(), config.cycles_per_byte.into()]
        }
        _ => Vec::new(),
    }),
    read: |fields| FunctionConfig::Work(WorkConfig::of(fields)),
    effect: |config| match config {
        FunctionConfig::Work(config) => Effect {
            busy: Cost::new(
                f64::from(config.cycles) / NOMINAL_GHZ,
                f64::from(config.cycles_per_byte) / NOMINAL_GHZ,
            ),
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    ..Kind::BASE
};
