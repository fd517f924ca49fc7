//! The programs of `look_up_*.bpf.c`: packets of random flows, for a loaded function and for the
//! bare look-up in its map.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{io, mem};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use myelin_kernel::Hook;

use super::{INSTANCE, failed, keep_programs, load_object, missing};
use crate::Error;

/// The function with the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookUpFunction {
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

impl LookUpFunction {
    /// Its objects by hook, and the function's maps that they use.
    fn objects_and_maps(self) -> ([&'static [u8]; 2], &'static [&'static str]) {
        match self {
            Self::Router => (
                objects!("router"),
                &["direct4", "blocks4", "trees6", "nodes6", "leaves6"],
            ),
            Self::LoadBalancer => (objects!("load_balancer"), &["flows"]),
            Self::Nat => (objects!("nat"), &["outward"]),
        }
    }
}

/// Indices of the programs in the result of [`load`].
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

/// Loads the programs. They use the maps of `function` and tail-call `function` or `forward`.
/// `tree` is that of a router of IPv6 prefixes.
pub(crate) fn load(
    kind: LookUpFunction,
    hook: Hook,
    function: BorrowedFd<'_>,
    forward: BorrowedFd<'_>,
    tree: &[u8],
) -> Result<Vec<OwnedFd>, Error> {
    let (objects, wanted) = kind.objects_and_maps();
    let object = objects[usize::from(hook == Hook::Tcx)];
    let first = NAMES[0];
    let maps = maps_of(function)?;
    let loaded = load_object(object, &NAMES, |name, map| match name {
        INSTANCE => {
            // The data of a router ends with its first tree.
            if let Some(instance) = map.initial_value_mut() {
                let before = instance.len().saturating_sub(tree.len());
                if let Some(end) = instance.get_mut(before..before + tree.len()) {
                    end.copy_from_slice(tree);
                }
            }
            Ok(())
        }
        "programs" => map.set_max_entries(2),
        name if wanted.contains(&name) => {
            let shared = maps.iter().find(|map| map.name() == name);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            map.reuse_fd(shared.ok_or_else(missing)?.as_fd())
        }
        _ => map.set_autocreate(false),
    })?;
    let slots = loaded.maps().find(|map| map.name() == "programs");
    let slots = slots.ok_or_else(|| missing("programs"))?;
    for (slot, program) in [(0_u32, function), (1, forward)] {
        slots
            .update(
                &slot.to_ne_bytes(),
                &program.as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|cause| failed(first, "set its tail calls", &cause))?;
    }
    // The kernel empties a program array without descriptors, so this one is kept with the
    // programs.
    let table = slots
        .as_fd()
        .try_clone_to_owned()
        .map_err(|cause| Error::ebpf(first, "keep", cause))?;
    let mut programs = keep_programs(&loaded, &NAMES)?;
    programs.push(table);
    Ok(programs)
}

/// The maps that a program uses.
fn maps_of(program: BorrowedFd<'_>) -> Result<Vec<MapHandle>, Error> {
    const MAX_MAPS: usize = 64;
    let mut numbers = [0_u32; MAX_MAPS];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: MAX_MAPS as u32,
        map_ids: numbers.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut len = mem::size_of_val(&info) as u32;
    // SAFETY: `len` is the length of `info`. Its only pointer leads to room for `nr_map_ids`
    // numbers. Both outlive the call.
    let failure = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len)
    };
    if failure < 0 {
        let cause = io::Error::from_raw_os_error(-failure);
        return Err(Error::ebpf("kernel function", "list its maps", cause));
    }
    numbers
        .iter()
        .take(info.nr_map_ids as usize)
        .map(|number| {
            MapHandle::from_map_id(*number)
                .map_err(|cause| failed("kernel function", "open one of its maps", &cause))
        })
        .collect()
}
