//! The kernel functions of one generation of one chain.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use myelin_packet::Flows;
use myelin_packet::meta::MAX_SPI;
use myelin_packet::sojourn::Histogram;
use myelin_spec::{FunctionInstance, OnFailure};

use crate::classifier::ChainTarget;
use crate::map::put;
use crate::numbers::NumberRange;
use crate::policer::Policer;
use crate::reports::RouterReports;
use crate::resources::PlaneResources;
use crate::segment::{LoadedSegment, Loader};
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::{Error, Hook, flows, lock};

/// Largest number of functions in a chain. The kernel allows 33 tail calls, and the front door
/// needs one tail call for each segment.
pub const MAX_FUNCTIONS: u8 = 32;

/// The part of a chain that runs in the kernel.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    /// Service path identifier: 24 bits, unique in the plane.
    pub spi: u32,
    /// Number of the generation. Each live change of the chain makes a new generation.
    pub generation: u16,
    /// The hook whose front door takes the chain's packets.
    pub hook: Hook,
    /// Treatment of a packet if the next function or socket is missing.
    pub on_failure: OnFailure,
    /// Polices the packets at the front door.
    pub policer: Option<Arc<Policer>>,
    /// Number of functions in the whole chain, in both spaces.
    pub positions: u8,
    /// The space of the first function.
    pub entry: EntrySpace,
    /// Maximal runs of kernel functions, in order.
    pub segments: Vec<KernelSegment>,
}

/// The space of a chain's first function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntrySpace {
    /// The first function is in the kernel.
    Kernel,
    /// The first function is in user space, behind the AF_XDP sockets of the port.
    User,
}

/// A maximal run of adjacent kernel functions.
#[derive(Clone, Debug)]
pub struct KernelSegment {
    /// Position of the segment's first function in the chain.
    pub first_position: u8,
    /// The functions in order, each with the name of its state. The list is not empty.
    pub functions: Vec<FunctionInstance>,
    /// Where packets continue after the segment.
    pub exit: Exit,
}

/// Where packets continue after the last function of a segment.
#[derive(Clone, Debug)]
pub enum Exit {
    /// Packets leave the chain.
    Egress {
        /// Index of the egress interface.
        ifindex: u32,
        /// At tcx: the interface is a veth whose far end is in another namespace. Packets go
        /// directly to that end.
        peer: bool,
        /// At XDP: packets leave by the stack's transmit path. A redirect into a veth without NAPI
        /// at the far end would lose the packets.
        by_stack: bool,
    },
    /// Packets leave the chain over an exit link to another node ([`WireExit`](crate::WireExit)).
    Wire {
        /// Index of the near end of the link.
        ifindex: u32,
    },
    /// Packets leave the chain through a class of the interface's queueing discipline; tcx only.
    Qdisc {
        /// Index of the egress interface.
        ifindex: u32,
        /// The class: major number of the discipline and minor number, as in `skb->priority`.
        class: u32,
    },
    /// Packets leave the chain through an interface that delays each packet until the packet's
    /// departure time (EDT); tcx only.
    Departure {
        /// Index of the egress interface, whose queueing discipline is `fq`.
        ifindex: u32,
        /// Computes the departure times.
        shaper: Arc<Policer>,
    },
    /// Packets continue in user space.
    User {
        /// The sockets of the segment's ingress interface: a port or a re-entry door.
        sockets: Sockets,
    },
}

impl Exit {
    /// Returns whether packets leave the chain here.
    fn leaves_chain(&self) -> bool {
        !matches!(self, Self::User { .. })
    }
}

/// `struct chain`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ChainEntry {
    spi: u32,
    line: u32,
    slot: u32,
    generation: u16,
    hook: u8,
    entry: u8,
    on_failure: u8,
    padding: [u8; 3],
    policer: u32,
    end_padding: [u8; 8],
}

impl ChainEntry {
    /// The entry of a chain whose front door is behind an entry link. `near` is the index of the
    /// link's near end.
    pub(crate) fn relay(spi: u32, line: u32, near: u32) -> Self {
        Self {
            spi,
            line,
            slot: near,
            hook: Hook::Tcx.number(),
            entry: 3,
            ..Self::zeroed()
        }
    }

    /// The entry of a blocked match. No program has this slot, and `on_failure` is `drop`.
    pub(crate) fn block(line: u32) -> Self {
        Self {
            line,
            slot: u32::MAX,
            hook: Hook::Tcx.number(),
            ..Self::zeroed()
        }
    }
}

/// The loaded kernel functions of a chain. Remove the matches and paths of the chain before you
/// drop it. The drop unloads the programs and frees their numbers.
#[derive(Debug)]
pub struct LoadedChain {
    target: Arc<ChainTarget>,
    generation: u16,
    positions: u8,
    hook: Hook,
    lines: Arc<NumberRange>,
    /// The sojourn histogram of each section.
    sojourns: Vec<Sojourn>,
    segments: Vec<LoadedSegment>,
    entry: ChainEntry,
    _policer: Option<Arc<Policer>>,
    /// Target of the previous generation, while packets with this chain's number may still reach
    /// that generation. Keeps the numbers of that generation allocated.
    old_target: Mutex<Option<Arc<ChainTarget>>>,
}

/// The parts of a chain that must exist before the chain's entry in the map `chains`.
pub(crate) struct LoadedParts {
    pub(crate) lines: Arc<NumberRange>,
    /// The sojourn histogram of each section; empty if the egress is in user space.
    pub(crate) sojourns: Vec<Sojourn>,
    pub(crate) segments: Vec<LoadedSegment>,
}

impl LoadedChain {
    pub(crate) fn load(shared: &Arc<PlaneResources>, config: &ChainConfig) -> Result<Self, Error> {
        check_segments(config)?;
        let lines = Arc::new(shared.counters.allocate(u32::from(config.positions) + 2)?);
        let has_egress = config
            .segments
            .iter()
            .any(|segment| segment.exit.leaves_chain());
        let sojourn = has_egress
            .then(|| Sojourn::new(shared.counters.cpus()))
            .transpose()?;
        let loader = Loader {
            shared,
            config,
            lines: &lines,
            sojourn: sojourn.as_ref(),
        };
        let segments: Vec<LoadedSegment> = config
            .segments
            .iter()
            .map(|segment| loader.load(segment))
            .collect::<Result<_, _>>()?;
        let parts = LoadedParts {
            lines,
            sojourns: sojourn.into_iter().collect(),
            segments,
        };
        Self::assemble(shared, config, parts)
    }

    /// Allocates the chain's number and writes the chain's entry. Uses the segments of `parts`, and
    /// ignores the segments of `config`.
    pub(crate) fn assemble(
        shared: &PlaneResources,
        config: &ChainConfig,
        parts: LoadedParts,
    ) -> Result<Self, Error> {
        let LoadedParts {
            lines,
            sojourns,
            segments,
        } = parts;
        let first = segments
            .first()
            .filter(|segment| segment.first_position() == 0);
        let number = NumberRange::allocate(&shared.chain_numbers, 1)?;
        let ranges = [Some(&lines), first.map(LoadedSegment::slots)];
        let target = ChainTarget::new(
            config.spi,
            number,
            ranges.into_iter().flatten().cloned().collect(),
        );
        let entry = ChainEntry {
            spi: config.spi,
            line: lines.start(),
            slot: first.map_or(0, |segment| segment.slots().start()),
            generation: config.generation,
            hook: config.hook.number(),
            entry: match config.entry {
                EntrySpace::Kernel => 1,
                EntrySpace::User => 2,
            },
            on_failure: (config.on_failure == OnFailure::Pass).into(),
            padding: [0; 3],
            policer: config.policer.as_deref().map_or(0, Policer::number),
            end_padding: [0; 8],
        };
        let chain = Self {
            target: Arc::new(target),
            generation: config.generation,
            positions: config.positions,
            hook: config.hook,
            lines,
            sojourns,
            segments,
            entry,
            _policer: config.policer.clone(),
            old_target: Mutex::default(),
        };
        for hook in Hook::ALL {
            chain.write_entry(shared, hook, entry)?;
        }
        Ok(chain)
    }

    /// Writes the chain's entry for the front door of a hook.
    fn write_entry(
        &self,
        shared: &PlaneResources,
        hook: Hook,
        entry: ChainEntry,
    ) -> Result<(), Error> {
        let number = self.target.number.start().to_ne_bytes();
        let chains = ("chains", "add a chain to");
        put(
            shared.chains(hook),
            chains,
            &number,
            bytemuck::bytes_of(&entry),
        )
    }

    /// See [`Plane::keep_old_entry`](crate::Plane::keep_old_entry).
    pub(crate) fn keep_old_entry(&self, shared: &PlaneResources, old: &Self) -> Result<(), Error> {
        if (old.hook, self.hook) == (Hook::Tcx, Hook::Xdp) {
            self.write_entry(shared, Hook::Tcx, old.entry)?;
            *lock(&self.old_target) = Some(Arc::clone(&old.target));
        }
        Ok(())
    }

    /// See [`Plane::drop_old_entry`](crate::Plane::drop_old_entry).
    pub(crate) fn drop_old_entry(&self, shared: &PlaneResources) -> Result<(), Error> {
        let mut old_target = lock(&self.old_target);
        if old_target.is_some() {
            self.write_entry(shared, Hook::Tcx, self.entry)?;
            *old_target = None;
        }
        Ok(())
    }

    /// Returns the service path identifier.
    pub fn spi(&self) -> u32 {
        self.target.spi
    }

    /// Returns the number of the generation.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Returns the hook of the chain.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// Returns the slot of the first function, if that function is in the kernel.
    pub(crate) fn entry_slot(&self) -> Option<u32> {
        self.segment(0).map(|segment| segment.slots().start())
    }

    /// Returns the counter slot of the front door, for [`Counters::read`](crate::Counters::read).
    pub fn door_slot(&self) -> u32 {
        door_line(&self.lines)
    }

    /// Returns the counter slot of a function; `None` beyond the chain's end. The counters of a
    /// function in user space are zero, because its worker counts.
    pub fn counter_slot(&self, position: u8) -> Option<u32> {
        (position < self.positions).then(|| function_line(&self.lines, position))
    }

    /// Returns the counter slot of a kernel egress.
    pub fn egress_slot(&self) -> u32 {
        egress_line(&self.lines, self.positions)
    }

    /// Returns the sojourn histogram of all packets so far, from the front door or the last black
    /// box to a kernel egress. The histogram is empty if the egress is in user space.
    pub fn sojourn(&self) -> Histogram {
        self.sojourns
            .last()
            .map_or_else(Histogram::new, Sojourn::read)
    }

    /// Returns the sojourn histogram of each section. A section ends at a black box or at the
    /// egress.
    pub fn sections(&self) -> Vec<Histogram> {
        self.sojourns.iter().map(Sojourn::read).collect()
    }

    /// Returns the flows of a kernel function; `None` if the function keeps no flows.
    pub fn flows(&self, position: u8) -> Result<Option<Flows>, Error> {
        self.segments
            .iter()
            .find_map(|segment| segment.state(position))
            .map_or(Ok(None), flows::read)
    }

    /// Returns the reports of a router in the kernel; `None` for any other function.
    pub fn reports(&self, position: u8) -> Result<Option<RouterReports>, Error> {
        self.segments
            .iter()
            .find_map(|segment| segment.state(position))
            .map_or(Ok(None), RouterReports::of)
    }

    /// Returns the program of a kernel function, for test runs.
    pub fn program(&self, position: u8) -> Option<BorrowedFd<'_>> {
        self.segments
            .iter()
            .find_map(|segment| segment.program(position))
    }

    /// Returns the segment that starts at a position.
    pub(crate) fn segment(&self, position: u8) -> Option<&LoadedSegment> {
        self.segments
            .iter()
            .find(|segment| segment.first_position() == position)
    }

    pub(crate) fn target(&self) -> &Arc<ChainTarget> {
        &self.target
    }
}

/// Returns the front door's counter line. The lines of a chain are: front door, functions, egress.
fn door_line(lines: &NumberRange) -> u32 {
    lines.start()
}

pub(crate) fn function_line(lines: &NumberRange, position: u8) -> u32 {
    lines.start() + 1 + u32::from(position)
}

pub(crate) fn egress_line(lines: &NumberRange, positions: u8) -> u32 {
    lines.start() + 1 + u32::from(positions)
}

/// Checks the chain's path identifier and number of functions.
pub(crate) fn check_numbers(spi: u32, positions: usize) -> Result<(), Error> {
    let fail = |problem: String| Err(Error::chain(spi, problem));
    if spi == 0 || spi > MAX_SPI {
        return fail(format!("the path identifier must be 1 to {MAX_SPI}"));
    }
    if positions == 0 || positions > usize::from(MAX_FUNCTIONS) {
        return fail(format!(
            "{positions} functions: a chain has 1 to {MAX_FUNCTIONS} functions"
        ));
    }
    Ok(())
}

/// Checks that every packet can pass the segments of the chain in order.
fn check_segments(config: &ChainConfig) -> Result<(), Error> {
    check_numbers(config.spi, config.positions.into())?;
    let fail = |problem: String| Err(Error::chain(config.spi, problem));
    let starts_in_kernel = config
        .segments
        .first()
        .is_some_and(|segment| segment.first_position == 0);
    if starts_in_kernel != (config.entry == EntrySpace::Kernel) {
        return fail("`entry` and the chain's first function are in different spaces".into());
    }
    let mut free_from = 0;
    for segment in &config.segments {
        let first = usize::from(segment.first_position);
        let end = first + segment.functions.len();
        if segment.functions.is_empty() || end > usize::from(config.positions) {
            return fail(format!(
                "the segment at position {first} is empty or longer than the chain"
            ));
        }
        if first < free_from {
            return fail(format!(
                "no function in user space lies between the segment at position {first} and the segment before it"
            ));
        }
        let last = end == usize::from(config.positions);
        if last != segment.exit.leaves_chain() {
            return fail(format!(
                "the segment at position {first} must exit at the egress if and only if it is the last segment"
            ));
        }
        if config.hook == Hook::Tcx && (first > 0 || !last) {
            return fail(
                "packets reach user space from the XDP hook only: set `hook: xdp` or `auto`".into(),
            );
        }
        let is_shaped = matches!(segment.exit, Exit::Qdisc { .. } | Exit::Departure { .. });
        if config.hook == Hook::Xdp && is_shaped {
            return fail(
                "a redirect at XDP bypasses the queueing discipline of an interface: set `hook: tcx`"
                    .into(),
            );
        }
        // A function in user space lies between two segments.
        free_from = end + 1;
    }
    if config.hook == Hook::Tcx && config.entry == EntrySpace::User {
        return fail(
            "packets reach user space from the XDP hook only: set `hook: xdp` or `auto`".into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::DOOR;
    use crate::tests::assert_same_layout;

    #[test]
    fn entries_match_their_c_layout() {
        assert_same_layout!(
            DOOR,
            "chain",
            ChainEntry {
                spi,
                line,
                slot,
                generation,
                hook,
                entry,
                on_failure,
                padding,
                policer,
                end_padding
            }
        );
    }
}
