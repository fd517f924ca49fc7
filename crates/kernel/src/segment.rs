//! A loaded segment of kernel functions.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use myelin_spec::OnFailure;

use crate::chain::{ChainConfig, Exit, KernelSegment, egress_line, function_line};
use crate::depart::DepartInstance;
use crate::hop::{Hop, HopExit};
use crate::instance::{self, LoadedFunction};
use crate::numbers::NumberRange;
use crate::object::DEPART;
use crate::resources::PlaneResources;
use crate::sojourn::{SOJOURN, Sojourn};
use crate::state::FunctionState;
use crate::{Error, Hook};

/// The common context of a chain's segments.
pub(crate) struct Loader<'a> {
    pub(crate) shared: &'a Arc<PlaneResources>,
    pub(crate) config: &'a ChainConfig,
    pub(crate) lines: &'a NumberRange,
    pub(crate) sojourn: Option<&'a Sojourn>,
}

impl Loader<'_> {
    pub(crate) fn load(&self, segment: &KernelSegment) -> Result<LoadedSegment, Error> {
        let Self {
            shared,
            config,
            lines,
            sojourn,
        } = *self;
        let hook = config.hook;
        let shaped = match &segment.exit {
            Exit::Qdisc { ifindex, class } => Some((*ifindex, *class, 0)),
            Exit::Departure { ifindex, shaper } => Some((*ifindex, 0, shaper.number())),
            Exit::Egress { .. } | Exit::Wire { .. } | Exit::User { .. } => None,
        };
        let functions = segment.functions.len() as u32;
        let slots =
            NumberRange::allocate(shared.slots(hook), functions + u32::from(shaped.is_some()))?;
        // Create the segment first: if a later step fails, its drop empties the filled slots.
        let mut loaded = LoadedSegment {
            hook,
            first_position: segment.first_position,
            slots: Arc::new(slots),
            programs: Vec::with_capacity(segment.functions.len()),
            shared: Arc::clone(shared),
        };
        let egress = egress_line(lines, config.positions);
        let mut maps = Vec::new();
        let mut exit = match &segment.exit {
            Exit::Egress {
                ifindex,
                peer,
                by_stack,
            } => HopExit::at_egress(hook, *ifindex, (*peer, *by_stack), egress),
            Exit::Wire { ifindex } => HopExit::Wire {
                ifindex: *ifindex,
                line: egress,
            },
            Exit::Qdisc { .. } | Exit::Departure { .. } => HopExit::Next {
                slot: loaded.slots.start() + functions,
            },
            Exit::User { sockets } => {
                maps.push(("sockets", sockets.0.as_fd()));
                HopExit::User {
                    position: segment.first_position + segment.functions.len() as u8,
                }
            }
        };
        maps.extend(sojourn.map(|sojourn| (SOJOURN, sojourn.as_fd())));
        maps.extend(shared.maps(hook));
        if let Some((ifindex, class, shaper)) = shaped {
            let last = segment.first_position + functions as u8 - 1;
            let out = HopExit::Out {
                ifindex,
                peer: false,
                line: egress,
            };
            let (counting, line) = (shared.counters.counting(), function_line(lines, last));
            let hop = Hop::new(counting, line, out, fallback_verdict(config, segment));
            let depart = DepartInstance { hop, class, shaper };
            let mut maps = maps.clone();
            maps.push(("policers", shared.policers.as_fd()));
            let program = DEPART.load(hook, bytemuck::bytes_of(&depart), &maps)?;
            let slot = loaded.slots.start() + functions;
            shared.set_slot(hook, slot, program.as_fd())?;
            loaded.programs.push(program.into());
        }
        // Load the last function first, so the slot of each function's successor is already filled.
        // The JIT then writes the jump once, and patches no code later.
        for (i, function) in segment.functions.iter().enumerate().rev() {
            let position = segment.first_position + i as u8;
            let line = function_line(lines, position);
            let hop = Hop::new(
                shared.counters.counting(),
                line,
                exit,
                fallback_verdict(config, segment),
            );
            let program = instance::load(hook, position, function, hop, &maps, &shared.states)?;
            let slot = loaded.slots.start() + i as u32;
            shared.set_slot(hook, slot, program.fd.as_fd())?;
            loaded.programs.insert(0, program);
            exit = HopExit::Next { slot };
        }
        Ok(loaded)
    }
}

/// Returns the verdict for a packet whose next function or socket is missing. A packet from user
/// space never reaches the host's stack, which would see a packet of the internal link.
fn fallback_verdict(config: &ChainConfig, segment: &KernelSegment) -> u32 {
    match (config.on_failure, config.hook) {
        (OnFailure::Pass, hook) if segment.first_position == 0 => hook.pass(),
        (_, hook) => hook.drop(),
    }
}

/// The loaded programs of a segment, each in its slot. The drop unloads the programs.
#[derive(Debug)]
pub(crate) struct LoadedSegment {
    hook: Hook,
    first_position: u8,
    slots: Arc<NumberRange>,
    /// In chain order.
    programs: Vec<LoadedFunction>,
    shared: Arc<PlaneResources>,
}

impl LoadedSegment {
    /// Loads one program at the start of a chain.
    pub(crate) fn load_entry(
        shared: &Arc<PlaneResources>,
        hook: Hook,
        program: LoadedFunction,
    ) -> Result<Self, Error> {
        let slots = NumberRange::allocate(shared.slots(hook), 1)?;
        shared.set_slot(hook, slots.start(), program.fd.as_fd())?;
        Ok(Self {
            hook,
            first_position: 0,
            slots: Arc::new(slots),
            programs: vec![program],
            shared: Arc::clone(shared),
        })
    }

    pub(crate) fn first_position(&self) -> u8 {
        self.first_position
    }

    /// Returns the segment's slots. A clone of the `Arc` keeps the slots allocated.
    pub(crate) fn slots(&self) -> &Arc<NumberRange> {
        &self.slots
    }

    /// Returns the state of the function at a position of this segment, if it has one.
    pub(crate) fn state(&self, position: u8) -> Option<&FunctionState> {
        let at = position.checked_sub(self.first_position)?;
        self.programs.get(usize::from(at))?.state.as_deref()
    }

    /// Returns the program of the function at a position of this segment.
    pub(crate) fn program(&self, position: u8) -> Option<BorrowedFd<'_>> {
        let at = position.checked_sub(self.first_position)?;
        self.programs
            .get(usize::from(at))
            .map(|instance| instance.fd.as_fd())
    }
}

impl Drop for LoadedSegment {
    fn drop(&mut self) {
        self.shared.close_slots(self.hook, self.slots.range());
    }
}
