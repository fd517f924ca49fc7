//! The compiled eBPF programs, and their loader.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;

use libbpf_rs::{MapCore, MapHandle, MapInfo, ObjectBuilder, PrintLevel, set_print};

use crate::{Error, Hook, immediate};

/// An eBPF source file, compiled for each hook that the program supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    name: &'static str,
    /// Empty for a program that runs at tc only.
    xdp: &'static [u8],
    /// Empty for a program that runs at XDP only.
    tc: &'static [u8],
}

/// All programs, as `build.rs` lists them from `src/bpf`.
pub(crate) const ALL: &[Program] = include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The front door.
pub(crate) const DOOR: Program = find_program("door");
/// The re-entry door.
pub(crate) const REENTRY: Program = find_program("reentry");
/// The forwarder between functions in their own namespaces.
pub(crate) const SFF: Program = find_program("sff");
/// The exit after a distributed chain's last function, if that function is in user space.
pub(crate) const LEAVE: Program = find_program("leave");
/// Declares the map of policers; its program is for tests.
pub(crate) const POLICER: Program = find_program("policer");
/// The exit of a chain that the egress interface shapes.
pub(crate) const DEPART: Program = find_program("depart");
/// The conformance monitor.
pub(crate) const CONFORM: Program = find_program("conform");
/// Sends packets of an impaired link to the delay line.
pub(crate) const DELAY_ENTER: Program = find_program("delay_enter");
/// Delivers packets of the delay line.
pub(crate) const DELAY_LEAVE: Program = find_program("delay_leave");
/// Hands packets to the delay line's worker.
pub(crate) const DELAY_STAMP: Program = find_program("delay_stamp");
/// Takes frames of other nodes.
pub(crate) const WIRE_IN: Program = find_program("wire_in");
/// Sends packets to another node.
pub(crate) const WIRE_OUT: Program = find_program("wire_out");
/// Sends the flows of a part to several next parts.
pub(crate) const SPLIT: Program = find_program("split");
/// Replaces the program of a removed function.
pub(crate) const CLOSED: Program = find_program("closed");
/// Kernel function `forward`.
#[cfg(test)]
pub(crate) const FORWARD: Program = find_program("forward");
/// Kernel function `nat`.
pub(crate) const NAT: Program = find_program("nat");
/// Kernel function `firewall`.
pub(crate) const FIREWALL: Program = find_program("firewall");
/// Kernel function `load-balancer`.
pub(crate) const LOAD_BALANCER: Program = find_program("load_balancer");
/// Kernel function `router`.
pub(crate) const ROUTER: Program = find_program("router");
/// Kernel function `monitor`.
pub(crate) const MONITOR: Program = find_program("monitor");
/// Kernel function `flow-tracker`.
pub(crate) const FLOW_TRACKER: Program = find_program("flow_tracker");

/// Returns the program called `name`. Fails the build if there is no such program.
const fn find_program(name: &str) -> Program {
    let mut i = 0;
    while i < ALL.len() {
        if is_same(ALL[i].name.as_bytes(), name.as_bytes()) {
            return ALL[i];
        }
        i += 1;
    }
    panic!("src/bpf contains no program of this name")
}

const fn is_same(left: &[u8], right: &[u8]) -> bool {
    let mut i = 0;
    while i < left.len() && i < right.len() && left[i] == right[i] {
        i += 1;
    }
    i == left.len() && i == right.len()
}

/// The section of every program's read-only data.
const INSTANCE: &str = ".rodata.instance";
/// Prefix of the names of maps that programs use as variables.
const DATA: &str = ".data.";

impl Program {
    /// Returns the program of a function kind.
    pub(crate) fn of_kind(kind: &str) -> Option<Self> {
        let name = kind.replace('-', "_");
        ALL.iter().find(|program| program.name == name).copied()
    }

    /// Returns the program's name.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the program's objects.
    #[cfg(test)]
    pub(crate) fn objects(&self) -> impl Iterator<Item = &'static [u8]> {
        [self.xdp, self.tc]
            .into_iter()
            .filter(|object| !object.is_empty())
    }

    /// Returns one object of the program, to read common declarations.
    pub(crate) fn any_object(&self) -> &'static [u8] {
        if self.xdp.is_empty() {
            self.tc
        } else {
            self.xdp
        }
    }

    /// Loads an instance of the program. `instance` is the read-only data; `maps` are the maps by
    /// name. The kernel frees the maps after the program.
    pub(crate) fn load(
        &self,
        hook: Hook,
        instance: &[u8],
        maps: &[(&str, BorrowedFd<'_>)],
    ) -> Result<OwnedFd, Error> {
        messages::take();
        self.try_load(hook, instance, maps)
            .map_err(|cause| Error::Load {
                program: self.name,
                hook,
                cause,
                log: messages::take(),
            })
    }

    /// Creates the map `name` that the program declares, with `entries` elements. The map's BTF
    /// describes the spin lock in an element.
    pub(crate) fn create_declared_map(
        &self,
        name: &'static str,
        entries: u32,
    ) -> Result<MapHandle, Error> {
        messages::take();
        let create = || {
            let mut open = ObjectBuilder::default().open_memory(self.any_object())?;
            for mut program in open.progs_mut() {
                program.set_autoload(false);
            }
            for mut map in open.maps_mut() {
                if map.name() == name {
                    map.set_max_entries(entries)?;
                } else {
                    map.set_autocreate(false)?;
                }
            }
            let loaded = open.load()?;
            let map = loaded.maps().find(|map| map.name() == name);
            let map = map.ok_or_else(|| {
                libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::NotFound))
            })?;
            MapHandle::try_from(&map)
        };
        create().map_err(|cause| Error::map(name, "create", &cause))
    }

    fn try_load(
        &self,
        hook: Hook,
        instance: &[u8],
        maps: &[(&str, BorrowedFd<'_>)],
    ) -> Result<OwnedFd, libbpf_rs::Error> {
        let object = match hook {
            Hook::Xdp => self.xdp,
            Hook::Tcx => self.tc,
        };
        let object = immediate::fill_immediates(object, instance);
        let mut open = ObjectBuilder::default().open_memory(&object)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == INSTANCE {
                map.set_initial_value(instance)?;
                continue;
            }
            let shared = maps.iter().find(|(shared, _)| *shared == name);
            debug_assert!(shared.is_some(), "{} uses the map {name}", self.name);
            if let Some((_, fd)) = shared {
                if name.starts_with(DATA) {
                    // libbpf allocates memory of the section's size, but frees memory of the shared
                    // map's size.
                    map.set_value_size(MapInfo::new(*fd)?.info.value_size)?;
                }
                map.reuse_fd(*fd)?;
            }
        }
        let loaded = open.load()?;
        let program = loaded.progs().next().ok_or_else(|| {
            libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::InvalidData))
        })?;
        Ok(program.as_fd().try_clone_to_owned()?)
    }
}

/// Captures the messages that libbpf would print on standard error.
mod messages {
    use super::{Once, PrintLevel, RefCell, set_print};

    /// A verifier log can be megabytes; the cause is at its end.
    const MAX_LOG: usize = 4096;

    thread_local! {
        static LOG: RefCell<String> = const { RefCell::new(String::new()) };
    }

    #[allow(clippy::needless_pass_by_value)] // the signature is libbpf-rs's
    fn append(_: PrintLevel, message: String) {
        LOG.with_borrow_mut(|log| {
            log.push_str(&message);
            if log.len() > MAX_LOG {
                let mut cut = log.len() - MAX_LOG;
                while !log.is_char_boundary(cut) {
                    cut += 1;
                }
                log.drain(..cut);
            }
        });
    }

    /// Returns the messages of this thread since the last call, each on its own line.
    pub(super) fn take() -> String {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            set_print(Some((PrintLevel::Warn, append)));
        });
        let log = LOG.take();
        if log.is_empty() {
            log
        } else {
            format!("\n{}", log.trim_end())
        }
    }
}
