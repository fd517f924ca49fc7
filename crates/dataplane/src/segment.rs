//! A segment: consecutive user-space functions and their exit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use myelin_functions::{Batch, Function, Packet, States};
use myelin_packet::{Meta, nsh};
use myelin_spec::Shaping;

use crate::chain::{UserChain, UserExit};
use crate::emitter::FrameEmitter;
use crate::port::Buffer;
use crate::shaper::Shaper;
use crate::stats::ChainCounters;
use crate::umem::FrameMemory;

/// Consecutive user-space functions, ready to process packets.
pub(crate) struct Segment {
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) first_position: u8,
    pub(crate) functions: Vec<Box<dyn Function>>,
    pub(crate) exit: Exit,
    pub(crate) counters: Arc<ChainCounters>,
    /// The shaper of the packets at the exit; `None` without a shaper.
    pub(crate) shaping: Option<Shaping>,
    /// A new shaper, used if no other generation of the chain has a shaper.
    pub(crate) shaper: Option<Box<Shaper>>,
    /// Index of the forwarder's shaper that the segment uses.
    pub(crate) shaper_index: Option<u32>,
    ingress_port: IngressPort,
    /// Bit `i` is set if the function at index `i` needs the time.
    time_mask: u32,
    /// The timers of the functions that need one.
    timers: Vec<FunctionTimer>,
    /// Whether a timer is stopped until the next packet.
    has_stopped_timers: bool,
    /// Number of runs up to the next timed run.
    until_sample: u32,
}

/// One run in this many is timed, as in the kernel, because reading the clock costs as much as a
/// dozen trivial functions.
pub(crate) const SAMPLE_EVERY: u32 = 1024;

/// A clock and the cost of reading it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CalibratedClock {
    /// Reads CLOCK_MONOTONIC, ns.
    pub(crate) read_ns: fn() -> u64,
    /// Time between two consecutive readings, ns.
    cost_ns: u64,
}

impl CalibratedClock {
    pub(crate) fn new(read_ns: fn() -> u64) -> Self {
        let cost = |_| {
            let before = read_ns();
            read_ns().saturating_sub(before)
        };
        Self {
            read_ns,
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
        let time_mask = functions
            .iter()
            .enumerate()
            .map(|(index, function)| u32::from(function.needs_time()) << index)
            .sum();
        counters.set_segment_len(first_position.into(), functions.len());
        let timers = functions.iter().enumerate();
        let timers = timers.filter_map(|(index, function)| FunctionTimer::of(index, &**function));
        let timers = timers.collect();
        Self {
            spi,
            generation,
            first_position,
            functions,
            exit,
            counters: Arc::clone(counters),
            shaping: None,
            shaper: None,
            shaper_index: None,
            ingress_port: IngressPort::default(),
            time_mask,
            timers,
            has_stopped_timers: false,
            until_sample: SAMPLE_EVERY,
        }
    }

    /// Gives the functions the worker's clock.
    pub(crate) fn set_clock(&mut self, read_ns: fn() -> u64) {
        for function in &mut self.functions {
            function.set_clock(read_ns);
        }
    }

    /// Makes the segments of a chain with their functions and states. The error names the function.
    pub(crate) fn build(
        chain: &UserChain,
        counters: &Arc<ChainCounters>,
        states: &mut States,
    ) -> Result<Vec<Self>, String> {
        let ingress_port = IngressPort::default();
        chain
            .segments
            .iter()
            .enumerate()
            .map(|(index, segment)| {
                let functions = segment
                    .functions
                    .iter()
                    .zip(segment.first_position..)
                    .map(|(instance, position)| {
                        states
                            .instantiate(instance)
                            .map_err(|error| format!("function at position {position}: {error}"))
                    })
                    .collect::<Result<_, _>>()?;
                let target = match segment.exit {
                    UserExit::Port(_) => ExitTarget::Egress,
                    UserExit::Wire(_) => ExitTarget::Wire(chain.positions),
                    UserExit::Internal { position, .. } => ExitTarget::Kernel(position),
                    UserExit::Stage { position, .. } => ExitTarget::Stage(position),
                };
                let exit = Exit {
                    port: segment.exit.socket().0.into(),
                    target,
                };
                let chain = (chain.spi, chain.generation);
                let first = segment.first_position;
                Ok(Self {
                    ingress_port: IngressPort {
                        is_first_segment: index == 0,
                        ..ingress_port.clone()
                    },
                    shaping: segment.shaping,
                    shaper: segment
                        .shaping
                        .map(|shaping| Box::new(Shaper::new(shaping))),
                    ..Self::new(chain, first, functions, exit, counters)
                })
            })
            .collect()
    }

    /// Returns the chain's ingress port. `ingress` is the port of the run; `None` for a run that a
    /// timer started. Returns `None` before a packet of the chain has arrived.
    #[inline]
    pub(crate) fn ingress_port(&self, ingress: Option<usize>) -> Option<usize> {
        let IngressPort {
            is_first_segment,
            port,
        } = &self.ingress_port;
        if let Some(ingress) = ingress.filter(|_| *is_first_segment) {
            port.store(ingress, Ordering::Relaxed);
            return Some(ingress);
        }
        Some(port.load(Ordering::Relaxed)).filter(|port| *port != usize::MAX)
    }

    /// Returns whether packets return to the kernel through the port at which they arrived. That
    /// port is a link to an SFF, which accepts only packets with an NSH header.
    pub(crate) fn is_behind_sff(&self, ingress: usize) -> bool {
        self.exit.port == ingress && matches!(self.exit.target, ExitTarget::Kernel(_))
    }

    /// Counts a run. Returns whether to measure the time of this run.
    #[inline]
    pub(crate) fn sample_now(&mut self) -> bool {
        self.until_sample -= 1;
        let now = self.until_sample == 0;
        if now {
            self.until_sample = SAMPLE_EVERY;
        }
        now
    }

    /// Runs the functions on a batch, and measures their time if `sampled`. Emitted packets join
    /// the batch after the function that emitted them. Dropped packets are in [`Batch::dropped`].
    #[inline]
    pub(crate) fn process<'m>(
        &mut self,
        batch: &mut Batch<'m>,
        emitter: &mut FrameEmitter<'_, 'm>,
        clock: &CalibratedClock,
        sampled: bool,
    ) {
        if sampled || self.time_mask != 0 || batch.has_super_packets() {
            self.process_each_function(0, batch, emitter, clock, sampled);
            return;
        }
        let first = usize::from(self.first_position);
        let packets_in = batch.len();
        let Some((index, drops)) = process_until_drop_or_emit(&mut self.functions, batch, emitter)
        else {
            // All packets passed all functions, so one addition counts them for all functions.
            self.counters.count_segment(first, packets_in as u64);
            return;
        };
        for before in 0..index {
            self.counters
                .count_function(first + before, packets_in as u64, 0, 0);
        }
        self.count_and_collect_emitted(index, (packets_in, drops), batch, emitter);
        self.process_each_function(index + 1, batch, emitter, clock, false);
    }

    /// Returns when the next timer is due, ns; `u64::MAX` if no timer is set.
    pub(crate) fn due_ns(&self) -> u64 {
        let due = self.timers.iter().map(|timer| timer.due_ns);
        due.min().unwrap_or(u64::MAX)
    }

    /// Returns whether stopped timers need [`Self::restart_timers`] now that packets have arrived.
    #[inline]
    pub(crate) fn has_stopped_timers(&self) -> bool {
        self.has_stopped_timers
    }

    /// Restarts the stopped timers. Returns when the segment's next timer is due.
    pub(crate) fn restart_timers(&mut self, now_ns: u64) -> u64 {
        self.has_stopped_timers = false;
        for timer in self
            .timers
            .iter_mut()
            .filter(|timer| timer.due_ns == u64::MAX)
        {
            timer.due_ns = now_ns.saturating_add(timer.period_ns);
        }
        self.due_ns()
    }

    /// Calls the first function whose timer is due at `now_ns`, and runs the next functions on the
    /// packets that it emits. Returns `false` if no timer is due.
    pub(crate) fn run_due_timer<'m>(
        &mut self,
        now_ns: u64,
        batch: &mut Batch<'m>,
        emitter: &mut FrameEmitter<'_, 'm>,
        clock: &CalibratedClock,
    ) -> bool {
        let Some(due) = self.timers.iter_mut().find(|timer| timer.due_ns <= now_ns) else {
            return false;
        };
        let index = due.index;
        self.functions[index].run_timer(now_ns, emitter);
        if self.functions[index].needs_timer() {
            due.due_ns = now_ns.saturating_add(due.period_ns);
        } else {
            due.due_ns = u64::MAX;
            self.has_stopped_timers = true;
        }
        self.count_and_collect_emitted(index, (0, 0), batch, emitter);
        self.process_each_function(index + 1, batch, emitter, clock, false);
        true
    }

    /// Runs the functions from index `from` on. Gives the time to functions that need it, and
    /// counts each function separately.
    fn process_each_function<'m>(
        &mut self,
        from: usize,
        batch: &mut Batch<'m>,
        emitter: &mut FrameEmitter<'_, 'm>,
        clock: &CalibratedClock,
        sampled: bool,
    ) {
        let mut before = if sampled { (clock.read_ns)() } else { 0 };
        for index in from..self.functions.len() {
            if batch.is_empty() {
                break;
            }
            let function = &mut self.functions[index];
            if self.time_mask >> index & 1 == 1 {
                function.set_time((clock.read_ns)());
            }
            // Counters count the packets on the wire.
            let segments_in = batch.segments();
            function.process_batch(batch, emitter);
            let drops = segments_in - batch.segments();
            self.count_and_collect_emitted(index, (segments_in, drops), batch, emitter);
            if sampled {
                let now = (clock.read_ns)();
                let ns = now.saturating_sub(before + clock.cost_ns);
                let position = usize::from(self.first_position) + index;
                self.counters
                    .add_time_sample(position, segments_in as u64, ns);
                before = now;
            }
        }
    }

    /// Counts the packets of a function. Adds the packets that the function emitted to the batch.
    #[inline]
    fn count_and_collect_emitted<'m>(
        &self,
        index: usize,
        (packets_in, drops): (usize, usize),
        batch: &mut Batch<'m>,
        emitter: &mut FrameEmitter<'_, 'm>,
    ) {
        let emitted = std::mem::take(&mut emitter.emitted_count);
        if emitted > 0 {
            for mut packet in emitter.emitted.drain(..) {
                // Packets that a function held over a live change continue in the current
                // generation.
                packet.set_generation(self.generation);
                batch.push(packet);
            }
        }
        let position = usize::from(self.first_position) + index;
        self.counters
            .count_function(position, packets_in as u64, drops as u64, emitted as u64);
    }
}

/// Runs functions on a batch up to the first function that drops or emits. Returns the index of
/// that function and the number of drops.
///
/// This function is not inlined, so that the loop's variables stay in registers. With inlining,
/// each service function costs 50 % more.
#[inline(never)]
fn process_until_drop_or_emit<'m>(
    functions: &mut [Box<dyn Function>],
    batch: &mut Batch<'m>,
    emitter: &mut FrameEmitter<'_, 'm>,
) -> Option<(usize, usize)> {
    let count = functions.len();
    let mut rest = functions.iter_mut();
    while let Some(function) = rest.next() {
        let drops = function.process_batch(batch, emitter);
        // The sum needs one branch instead of two.
        if drops + emitter.emitted_count != 0 {
            return Some((count - rest.len() - 1, drops));
        }
    }
    None
}

/// A timer that calls a function without a packet.
#[derive(Debug, Clone, Copy)]
struct FunctionTimer {
    index: usize,
    period_ns: u64,
    due_ns: u64,
}

impl FunctionTimer {
    /// Returns the timer of a function, if the function needs a timer. The first call is due at
    /// once, to give the function the time.
    fn of(index: usize, function: &dyn Function) -> Option<Self> {
        Some(Self {
            index,
            period_ns: function.timer_period_ns()?.max(MIN_TIMER_PERIOD_NS),
            due_ns: 0,
        })
    }
}

/// Shortest period of a timer, ns. A shorter period would occupy the worker.
const MIN_TIMER_PERIOD_NS: u64 = 10_000;

/// The ingress port of a chain, where replies to senders leave. The first segment learns this port
/// from its packets. Packets of later segments arrive over an internal link.
#[derive(Debug, Clone)]
struct IngressPort {
    is_first_segment: bool,
    /// Shared by the segments of a chain; `usize::MAX` before the first packet.
    port: Arc<AtomicUsize>,
}

impl Default for IngressPort {
    fn default() -> Self {
        Self {
            is_first_segment: true,
            port: Arc::new(AtomicUsize::new(usize::MAX)),
        }
    }
}

/// The exit of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// Index of the port that transmits.
    pub(crate) port: usize,
    /// The destination of the packets.
    pub(crate) target: ExitTarget,
}

/// The destination of the packets at an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitTarget {
    /// The egress port: packets leave the chain.
    Egress,
    /// An exit link to another node: packets leave the chain behind NSH, which names this position,
    /// the chain's length.
    Wire(u8),
    /// The kernel function at this position, which the NSH header names.
    Kernel(u8),
    /// The function at this position, or the exit, in another worker process. The metadata before
    /// the packet names the position.
    Stage(u8),
}

impl ExitTarget {
    /// Whether packets leave the chain.
    pub(crate) fn leaves(self) -> bool {
        matches!(self, Self::Egress | Self::Wire(_))
    }
}

/// Prepends the NSH header to a packet for a kernel function. Returns `false` without enough
/// headroom.
#[inline]
pub(crate) fn encapsulate(packet: &mut Packet<'_>, position: u8) -> bool {
    packet.set_position(position);
    let Ok(header) = nsh::encapsulate(packet.meta(), packet.bytes()) else {
        return false;
    };
    let room = packet.push_front(header.len());
    room.map(|room| room.copy_from_slice(&header)).is_some()
}

/// Prepends the NSH header to a reply. The header names position 0, which marks a reply because no
/// exit leads to position 0. Returns `false` without enough headroom.
#[cold]
pub(crate) fn encapsulate_reply(
    memory: &FrameMemory,
    buffer: &mut Buffer,
    (spi, generation): (u32, u16),
) -> bool {
    let meta = Meta {
        spi,
        generation,
        ..Meta::default()
    };
    let (start, len) = (buffer.offset as usize, buffer.len as usize);
    let frame = memory.bytes_mut(&mut buffer.frame);
    let header = frame
        .get(start..start + len)
        .and_then(|reply| nsh::encapsulate(&meta, reply).ok());
    let room = start
        .checked_sub(nsh::ENCAPSULATION_LEN)
        .and_then(|from| frame.get_mut(from..start));
    let (Some(header), Some(room)) = (header, room) else {
        return false;
    };
    room.copy_from_slice(&header);
    buffer.offset -= nsh::ENCAPSULATION_LEN as u32;
    buffer.len += nsh::ENCAPSULATION_LEN as u32;
    true
}
