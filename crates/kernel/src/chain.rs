//! The kernel functions of one generation of one chain.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use myelin_packet::Flows;
use myelin_packet::meta::MAX_SPI;
use myelin_packet::sojourn::Histogram;
use myelin_spec::{FunctionInstance, OnFailure};

use crate::blocks::Block;
use crate::classifier::Target;
use crate::map::put;
use crate::policer::Policer;
use crate::segment::{LoadedSegment, Loader};
use crate::shared::Shared;
use crate::sockets::Sockets;
use crate::sojourn::Sojourn;
use crate::{Error, Hook, flows, lock};

/// Functions of a chain at most. The kernel allows 33 tail calls; the front door's is one for each segment.
pub const MAX_FUNCTIONS: u8 = 32;

/// A chain's part in the kernel.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    /// Service path identifier: 24 bits, one for each chain of the plane.
    pub spi: u32,
    /// Another one for each live change of the chain.
    pub generation: u16,
    /// Where the front door takes the chain's packets.
    pub hook: Hook,
    /// What happens to a packet when the function or the socket that is next is not there.
    pub on_failure: OnFailure,
    /// What holds its packets to their profile at the front door.
    pub policer: Option<Arc<Policer>>,
    /// Functions of the whole chain, in both spaces.
    pub positions: u8,
    /// Which space its first function is in.
    pub entry: Entry,
    /// Maximal runs of kernel functions, in the order of the chain.
    pub segments: Vec<KernelSegment>,
}

/// Where a chain starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// With a kernel function.
    Kernel,
    /// With a function in user space, behind the AF_XDP sockets of the port.
    User,
}

/// Kernel functions in a row.
#[derive(Clone, Debug)]
pub struct KernelSegment {
    /// Position of the first one in the chain.
    pub first_position: u8,
    /// The functions, each with the name of its state; at least one.
    pub functions: Vec<FunctionInstance>,
    /// Where packets go from the last one.
    pub exit: Exit,
}

/// Where packets go from the last function of a segment.
#[derive(Clone, Debug)]
pub enum Exit {
    /// Out of the chain.
    Egress {
        /// The interface.
        ifindex: u32,
        /// At tcx: it is a veth whose far end is in another namespace, and packets go straight there.
        peer: bool,
    },
    /// Out of the chain, through a class of the interface's queueing discipline; at tcx only.
    Qdisc {
        /// The interface.
        ifindex: u32,
        /// The class: major number of the discipline and minor number, as in `skb->priority`.
        class: u32,
    },
    /// Out of the chain, by an interface that holds each packet back until its departure time (EDT); at tcx only.
    Departure {
        /// The interface, whose queueing discipline is `fq`.
        ifindex: u32,
        /// What tells the times.
        shaper: Arc<Policer>,
    },
    /// On to user space.
    User {
        /// The sockets of the interface where this segment's packets come in: a port or a re-entry door.
        sockets: Sockets,
    },
}

impl Exit {
    /// Whether it leads out of the chain.
    fn leaves(&self) -> bool {
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
    spare: [u8; 3],
    policer: u32,
    more: [u8; 8],
}

/// A chain's kernel functions, loaded. Take its matches and paths away, then drop it: the programs are unloaded and their
/// places are free for others.
#[derive(Debug)]
pub struct LoadedChain {
    target: Arc<Target>,
    generation: u16,
    positions: u8,
    hook: Hook,
    lines: Arc<Block>,
    /// One for each section.
    sojourns: Vec<Sojourn>,
    segments: Vec<LoadedSegment>,
    entry: ChainEntry,
    _policer: Option<Arc<Policer>>,
    /// The generation before, as long as packets may be led to it by this one's number: its places stay taken.
    late: Mutex<Option<Arc<Target>>>,
}

/// What a chain is made of when its programs are loaded.
pub(crate) struct Parts {
    pub(crate) lines: Arc<Block>,
    /// Of each section of the chain's way; none where the egress is in user space.
    pub(crate) sojourns: Vec<Sojourn>,
    pub(crate) segments: Vec<LoadedSegment>,
}

impl LoadedChain {
    pub(crate) fn load(shared: &Arc<Shared>, config: &ChainConfig) -> Result<Self, Error> {
        check(config)?;
        let lines = Arc::new(shared.counters.take(u32::from(config.positions) + 2)?);
        let has_egress = config.segments.iter().any(|segment| segment.exit.leaves());
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
        let parts = Parts {
            lines,
            sojourns: sojourn.into_iter().collect(),
            segments,
        };
        Self::assemble(shared, config, parts)
    }

    /// Gives the chain a number and an entry; the segments are those of `parts`.
    pub(crate) fn assemble(
        shared: &Shared,
        config: &ChainConfig,
        parts: Parts,
    ) -> Result<Self, Error> {
        let Parts {
            lines,
            sojourns,
            segments,
        } = parts;
        let first = segments
            .first()
            .filter(|segment| segment.first_position() == 0);
        let number = Block::take(&shared.chain_numbers, 1)?;
        let places = [Some(&lines), first.map(LoadedSegment::slots)];
        let target = Target::new(
            config.spi,
            number,
            places.into_iter().flatten().cloned().collect(),
        );
        let entry = ChainEntry {
            spi: config.spi,
            line: lines.start(),
            slot: first.map_or(0, |segment| segment.slots().start()),
            generation: config.generation,
            hook: config.hook.number(),
            entry: match config.entry {
                Entry::Kernel => 1,
                Entry::User => 2,
            },
            on_failure: (config.on_failure == OnFailure::Pass).into(),
            spare: [0; 3],
            policer: config.policer.as_deref().map_or(0, Policer::number),
            more: [0; 8],
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
            late: Mutex::default(),
        };
        for hook in Hook::ALL {
            chain.write_entry(shared, hook, entry)?;
        }
        Ok(chain)
    }

    /// Where the front door of a hook sends packets whose match leads to this chain.
    fn write_entry(&self, shared: &Shared, hook: Hook, entry: ChainEntry) -> Result<(), Error> {
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
    pub(crate) fn keep_old_entry(&self, shared: &Shared, old: &Self) -> Result<(), Error> {
        if (old.hook, self.hook) == (Hook::Tcx, Hook::Xdp) {
            self.write_entry(shared, Hook::Tcx, old.entry)?;
            *lock(&self.late) = Some(Arc::clone(&old.target));
        }
        Ok(())
    }

    /// See [`Plane::drop_old_entry`](crate::Plane::drop_old_entry).
    pub(crate) fn drop_old_entry(&self, shared: &Shared) -> Result<(), Error> {
        let mut late = lock(&self.late);
        if late.is_some() {
            self.write_entry(shared, Hook::Tcx, self.entry)?;
            *late = None;
        }
        Ok(())
    }

    /// Service path identifier.
    pub fn spi(&self) -> u32 {
        self.target.spi
    }

    /// Generation.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Where the front door takes its packets.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// Slot of the first function's program, if that is in the kernel.
    pub(crate) fn entry_slot(&self) -> Option<u32> {
        self.segment(0).map(|segment| segment.slots().start())
    }

    /// Slot of the front door's counters, for [`Counters::read`](crate::Counters::read).
    pub fn door_slot(&self) -> u32 {
        door_line(&self.lines)
    }

    /// Slot of a function's counters; all zero for a function in user space, which counts elsewhere. `None` beyond the
    /// chain's end.
    pub fn counter_slot(&self, position: u8) -> Option<u32> {
        (position < self.positions).then(|| function_line(&self.lines, position))
    }

    /// Slot of the counters of what left by a kernel egress.
    pub fn egress_slot(&self) -> u32 {
        egress_line(&self.lines, self.positions)
    }

    /// Time from the front door (or the last black box) to a kernel egress of all packets so far; empty when the chain's egress is in user space.
    pub fn sojourn(&self) -> Histogram {
        self.sojourns
            .last()
            .map_or_else(Histogram::new, Sojourn::read)
    }

    /// The same for each section of the way: one up to each black box, each after the first from the box before, and the
    /// one to the egress.
    pub fn sections(&self) -> Vec<Histogram> {
        self.sojourns.iter().map(Sojourn::read).collect()
    }

    /// The flows that a kernel function knows; `None` for one that keeps none.
    pub fn flows(&self, position: u8) -> Result<Option<Flows>, Error> {
        self.segments
            .iter()
            .find_map(|segment| segment.state(position))
            .map_or(Ok(None), flows::read)
    }

    /// The program of a kernel function, for test runs.
    pub fn program(&self, position: u8) -> Option<BorrowedFd<'_>> {
        self.segments
            .iter()
            .find_map(|segment| segment.program(position))
    }

    /// The segment that starts at a position.
    pub(crate) fn segment(&self, position: u8) -> Option<&LoadedSegment> {
        self.segments
            .iter()
            .find(|segment| segment.first_position() == position)
    }

    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.target
    }
}

/// A chain's block of counter lines: the front door's, the functions', the egress's.
fn door_line(lines: &Block) -> u32 {
    lines.start()
}

pub(crate) fn function_line(lines: &Block, position: u8) -> u32 {
    lines.start() + 1 + u32::from(position)
}

pub(crate) fn egress_line(lines: &Block, positions: u8) -> u32 {
    lines.start() + 1 + u32::from(positions)
}

/// The numbers that a chain can have.
pub(crate) fn check_numbers(spi: u32, positions: usize) -> Result<(), Error> {
    let fail = |problem: String| Err(Error::chain(spi, problem));
    if spi == 0 || spi > MAX_SPI {
        return fail(format!("a path identifier is 1 to {MAX_SPI}"));
    }
    if positions == 0 || positions > usize::from(MAX_FUNCTIONS) {
        return fail(format!(
            "{positions} functions: a chain has 1 to {MAX_FUNCTIONS}"
        ));
    }
    Ok(())
}

/// The rules that user space must keep so that no packet takes a wrong way.
fn check(config: &ChainConfig) -> Result<(), Error> {
    check_numbers(config.spi, config.positions.into())?;
    let fail = |problem: String| Err(Error::chain(config.spi, problem));
    let starts_in_kernel = config
        .segments
        .first()
        .is_some_and(|segment| segment.first_position == 0);
    if starts_in_kernel != (config.entry == Entry::Kernel) {
        return fail("its entry and its first segment are in different spaces".into());
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
                "the segment at position {first} does not leave the one before by user space"
            ));
        }
        let last = end == usize::from(config.positions);
        if last != segment.exit.leaves() {
            return fail(format!(
                "the segment at position {first} must leave by the egress if and only if it is the last"
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
                "XDP redirects past the queueing discipline of an interface: set `hook: tcx`"
                    .into(),
            );
        }
        // A function in user space lies between two segments.
        free_from = end + 1;
    }
    if config.hook == Hook::Tcx && config.entry == Entry::User {
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
    use crate::tests::assert_twins;

    #[test]
    fn entries_lie_as_in_c() {
        assert_twins!(
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
                spare,
                policer,
                more
            }
        );
    }
}
