//! The programs of `look_up_*.bpf.c`: packets of flows drawn at random, for a function that is loaded already and the bare look-up in its map.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{io, mem};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use myelin_kernel::Hook;

use super::{INSTANCE, failed, hold, missing};
use crate::Error;

/// Which function's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    Router,
    LoadBalancer,
    Nat,
}

macro_rules! objects {
    ($name:literal) => {
        [
            include_bytes!(concat!(env!("OUT_DIR"), "/look_up_", $name, ".xdp.o")),
            include_bytes!(concat!(env!("OUT_DIR"), "/look_up_", $name, ".tc.o")),
        ]
    };
}

const ROUTER: [&[u8]; 2] = objects!("router");
const LOAD_BALANCER: [&[u8]; 2] = objects!("load_balancer");
const NAT: [&[u8]; 2] = objects!("nat");

impl Looked {
    /// Its objects, by hook, and the maps of the function that they look into.
    fn parts(self) -> ([&'static [u8]; 2], &'static [&'static str]) {
        match self {
            Self::Router => (
                ROUTER,
                &["direct4", "blocks4", "trees6", "nodes6", "leaves6"],
            ),
            Self::LoadBalancer => (LOAD_BALANCER, &["flows"]),
            Self::Nat => (NAT, &["outward"]),
        }
    }
}

/// The programs, in the order in which they are given.
pub(crate) const DRAWN_FUNCTION: usize = 0;
pub(crate) const DRAWN_LOOK_UP: usize = 1;
pub(crate) const DRAWN_FORWARD: usize = 2;
pub(crate) const HOT_FUNCTION: usize = 3;
pub(crate) const HOT_FORWARD: usize = 4;
const NAMES: [&str; 5] = [
    "drawn_function",
    "drawn_look_up",
    "drawn_forward",
    "hot_function",
    "hot_forward",
];

/// Loads the programs, which go on to `function` or `forward` and look into the maps of `function`. `tree` is that of a router of
/// IPv6 prefixes.
pub(crate) fn load(
    looked: Looked,
    hook: Hook,
    function: BorrowedFd<'_>,
    forward: BorrowedFd<'_>,
    tree: &[u8],
) -> Result<Vec<OwnedFd>, Error> {
    let (objects, wanted) = looked.parts();
    let object = objects[usize::from(hook == Hook::Tcx)];
    let whole = NAMES[0];
    let maps = maps_of(function)?;
    let mut open = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|cause| failed(whole, "read", &cause))?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let done = match name.as_str() {
            INSTANCE => {
                // Of a router, whose first tree ends it.
                if let Some(instance) = map.initial_value_mut() {
                    let before = instance.len().saturating_sub(tree.len());
                    if let Some(place) = instance.get_mut(before..before + tree.len()) {
                        place.copy_from_slice(tree);
                    }
                }
                Ok(())
            }
            "programs" => map.set_max_entries(2),
            name if wanted.contains(&name) => {
                let theirs = maps.iter().find(|map| map.name() == name);
                map.reuse_fd(theirs.ok_or_else(|| missing(name))?.as_fd())
            }
            _ => map.set_autocreate(false),
        };
        done.map_err(|cause| failed(whole, "fill the maps of", &cause))?;
    }
    for mut program in open.progs_mut() {
        let ours = NAMES.contains(&program.name().to_string_lossy().as_ref());
        program.set_autoload(ours);
    }
    let loaded = open.load().map_err(|cause| failed(whole, "load", &cause))?;
    let slots = loaded.maps().find(|map| map.name() == "programs");
    let slots = slots.ok_or_else(|| missing("programs"))?;
    for (slot, program) in [(0_u32, function), (1, forward)] {
        slots
            .update(
                &slot.to_ne_bytes(),
                &program.as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|cause| failed(whole, "say what comes behind", &cause))?;
    }
    // A table of programs is emptied when no descriptor of it is left; this one lasts as long as theirs.
    let table = slots
        .as_fd()
        .try_clone_to_owned()
        .map_err(|cause| Error::ebpf(whole, "hold", cause))?;
    NAMES
        .iter()
        .map(|name| hold(&loaded, name))
        .chain([Ok(table)])
        .collect()
}

/// The maps that a program uses.
fn maps_of(program: BorrowedFd<'_>) -> Result<Vec<MapHandle>, Error> {
    const MOST: usize = 64;
    let mut numbers = [0_u32; MOST];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: MOST as u32,
        map_ids: numbers.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut len = mem::size_of_val(&info) as u32;
    // SAFETY: `info` is as long as said and the only pointer in it leads to room for as many numbers as said; both outlive the call.
    let failure = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    };
    if failure < 0 {
        let cause = io::Error::from_raw_os_error(-failure);
        return Err(Error::ebpf(
            "of the kernel room",
            "ask for the maps of",
            cause,
        ));
    }
    numbers
        .iter()
        .take(info.nr_map_ids as usize)
        .map(|number| {
            MapHandle::from_map_id(*number)
                .map_err(|cause| failed("of the kernel room", "open a map of", &cause))
        })
        .collect()
}
