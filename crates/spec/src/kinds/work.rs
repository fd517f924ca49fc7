//! `work`: occupies the core, for experiments.

use super::prelude::*;

config! {
    /// Configuration of a `work` function.
    #[derive(Copy)]
    pub struct WorkConfig {
        /// The cycles of each packet.
        "cycles" cycles: u32 = integer(0, 100_000, "a number of cycles").required();
        /// The cycles of each byte of the frame, added to `cycles`. A packet takes at most 200000
        /// cycles.
        "cyclesPerByte" cycles_per_byte: u32 = integer(0, 100, "a number of cycles").with_default("0");
    }
}

/// Cycles of one step: an XOR takes 1 and a 64-bit multiplication 3, on x86-64 since 2008. Each
/// step waits for the previous step.
const CYCLES_PER_STEP: u64 = 4;
/// The most cycles of a packet, because the verifier checks each step.
const MAX_CYCLES: u64 = 200_000;
/// The clock for the predicted cost, cycles a nanosecond.
const NOMINAL_GHZ: f64 = 3.0;

impl WorkConfig {
    /// Returns the number of steps for a frame of `bytes` bytes.
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
    takes_super_packets: true,
    config: WorkConfig::KEYS,
    description: "Occupies the core for a given number of cycles, for experiments. The cycles are per packet \
                  and per byte, in steps of 4: dependent register operations. Packets pass unchanged.",
    example: "{ name: busy, kind: work, config: { cycles: 150 } }",
    kernel_constants: Some(|config| match config {
        FunctionConfig::Work(config) => {
            vec![config.cycles.into(), config.cycles_per_byte.into()]
        }
        _ => Vec::new(),
    }),
    read: |fields| FunctionConfig::Work(WorkConfig::from_fields(fields)),
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
