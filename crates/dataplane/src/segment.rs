//! A run of user-space functions, and where it leads.

use std::sync::Arc;

use myelin_functions::{Batch, Function, Packet, instantiate};
use myelin_packet::nsh;

use crate::chain::{UserChain, UserExit};
use crate::emitter::FrameEmitter;
use crate::stats::ChainCounters;

/// A run of user-space functions, ready to process packets.
pub(crate) struct Segment {
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) first_position: u8,
    pub(crate) functions: Vec<Box<dyn Function>>,
    pub(crate) exit: Exit,
    pub(crate) counters: Arc<ChainCounters>,
    /// Runs until the next one that is timed.
    until_sample: u32,
}

/// One run in this many has its functions timed: two readings of the clock cost as much as a dozen trivial functions.
pub(crate) const SAMPLE_EVERY: u32 = 128;

/// A clock and what it costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    /// Reads CLOCK_MONOTONIC, ns.
    pub(crate) clock: fn() -> u64,
    /// What two readings in a row are apart, ns.
    cost_ns: u64,
}

impl Timer {
    pub(crate) fn new(clock: fn() -> u64) -> Self {
        let cost = |_| {
            let before = clock();
            clock().saturating_sub(before)
        };
        Self {
            clock,
            cost_ns: (0..64).map(cost).min().unwrap_or(0),
        }
    }
}

impl Segment {
    pub(crate) fn new(
        (spi, generation): (u32, u16),
        first_position: u8,
        functions: Vec<Box<dyn Function>>,
        exit: Exit,
        counters: &Arc<ChainCounters>,
    ) -> Self {
        Self {
            spi,
            generation,
            first_position,
            functions,
            exit,
            counters: Arc::clone(counters),
            until_sample: SAMPLE_EVERY,
        }
    }

    /// Makes the functions of a chain's segments. The error names the function.
    pub(crate) fn build(
        chain: &UserChain,
        counters: &Arc<ChainCounters>,
    ) -> Result<Vec<Self>, String> {
        chain
            .segments
            .iter()
            .map(|segment| {
                let functions = segment
                    .functions
                    .iter()
                    .zip(segment.first_position..)
                    .map(|(config, position)| {
                        instantiate(config)
                            .map_err(|error| format!("function at position {position}: {error}"))
                    })
                    .collect::<Result<_, _>>()?;
                let inward = match segment.exit {
                    UserExit::Port(_) => None,
                    UserExit::Internal { position, .. } => Some(position),
                };
                let exit = Exit {
                    port: segment.exit.socket().0.into(),
                    inward,
                };
                let chain = (chain.spi, chain.generation);
                let first = segment.first_position;
                Ok(Self::new(chain, first, functions, exit, counters))
            })
            .collect()
    }

    /// Whether the next run is to be timed.
    #[inline]
    pub(crate) fn sample_now(&mut self) -> bool {
        self.until_sample -= 1;
        let now = self.until_sample == 0;
        if now {
            self.until_sample = SAMPLE_EVERY;
        }
        now
    }

    /// Takes a batch through the functions. Emitted packets join it behind the function that made them; dropped ones wait in
    /// [`Batch::dropped`].
    #[inline]
    pub(crate) fn process<'m>(
        &mut self,
        batch: &mut Batch<'m>,
        emitter: &mut FrameEmitter<'_, 'm>,
        timer: Option<&Timer>,
    ) {
        let mut before = timer.map_or(0, |timer| (timer.clock)());
        for (function, position) in self.functions.iter_mut().zip(self.first_position..) {
            let position = usize::from(position);
            let packets_in = batch.len();
            let drops = function.process_batch(batch, emitter);
            let emitted = emitter.emitted.len();
            if emitted > 0 {
                emitter
                    .emitted
                    .drain(..)
                    .for_each(|packet| batch.push(packet));
            }
            self.counters
                .pass(position, packets_in as u64, drops as u64, emitted as u64);
            if let Some(timer) = timer {
                let now = (timer.clock)();
                let ns = now.saturating_sub(before + timer.cost_ns);
                self.counters.sample(position, packets_in as u64, ns);
                before = now;
            }
            if batch.is_empty() {
                break;
            }
        }
    }
}

/// Where a segment leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// Index of the port it transmits on.
    pub(crate) port: usize,
    /// The next function's position, when it is in the kernel: the packet gets an NSH header that says so.
    pub(crate) inward: Option<u8>,
}

/// Puts the NSH header in front of a packet that goes on in the kernel; `false` when there is no room.
#[inline]
pub(crate) fn encapsulate(packet: &mut Packet<'_>, position: u8) -> bool {
    packet.set_position(position);
    let Ok(header) = nsh::encapsulate(packet.meta(), packet.bytes()) else {
        return false;
    };
    match packet.push_front(header.len()) {
        Ok(room) => {
            room.copy_from_slice(&header);
            true
        }
        Err(_) => false,
    }
}
