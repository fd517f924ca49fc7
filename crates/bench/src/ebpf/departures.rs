//! The program of `departures.bpf.c`: the end of the way, where each packet's arrival is noted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};

use super::{failed, hold, missing};
use crate::Error;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/departures.o"));
const NAME: &str = "note";
const MAP: &str = ".data.departures";
/// Chains that are told apart, by their destination port modulo this. Twin: `departures.bpf.c`.
pub(crate) const CHAINS: usize = 8;
/// Packets of a chain that are told apart, by their IP identification modulo this. Twin: `departures.bpf.c`.
pub(crate) const PACKETS: usize = 8192;

/// The program, and what it noted.
pub(crate) struct Departures {
    program: OwnedFd,
    map: MapHandle,
}

impl Departures {
    pub(crate) fn load() -> Result<Self, Error> {
        let loaded = ObjectBuilder::default()
            .open_memory(OBJECT)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|cause| failed(NAME, "load", &cause))?;
        let map = loaded.maps().find(|map| map.name() == MAP);
        let map = map.ok_or_else(|| missing(MAP))?;
        Ok(Self {
            program: hold(&loaded, NAME)?,
            map: MapHandle::try_from(&map)
                .map_err(|cause| failed(NAME, "hold the map of", &cause))?,
        })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// When each packet of each chain was seen last.
    pub(crate) fn seen(&self) -> Result<Seen, Error> {
        let value = self
            .map
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| failed(NAME, "read what was noted by", &cause))?;
        Ok(Seen(value.unwrap_or_default()))
    }
}

/// Times of CLOCK_MONOTONIC, ns.
pub(crate) struct Seen(Vec<u8>);

impl Seen {
    /// When the packet of that number was seen last, to that port; `None`: never.
    pub(crate) fn at(&self, port: u16, packet: u16) -> Option<u64> {
        let slot = usize::from(port) % CHAINS * PACKETS + usize::from(packet) % PACKETS;
        let bytes = self.0.get(slot * 8..slot * 8 + 8)?;
        let ns = u64::from_ne_bytes(bytes.try_into().ok()?);
        (ns > 0).then_some(ns)
    }
}

#[cfg(test)]
mod tests {
    use myelin_kernel::Hook;
    use myelin_kernel::test_run::{self, TestRun};

    use super::*;
    use crate::frames;

    #[test]
    fn packets_are_told_apart() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: loading eBPF programs needs root");
            return;
        }
        let departures = Departures::load().unwrap();
        let mut frame = frames::udp([10, 0, 0, 1], [10, 0, 0, 2], 9003, 64);
        frame[18..20].copy_from_slice(&8193_u16.to_be_bytes());
        let before = myelin_measure::clock::now_ns();
        test_run::run(departures.program(), Hook::Xdp, &TestRun::new(&frame)).unwrap();
        let seen = departures.seen().unwrap();
        let at = seen.at(9003, 1).unwrap();
        assert!((before..=myelin_measure::clock::now_ns()).contains(&at));
        assert_eq!((seen.at(9003, 0), seen.at(9002, 1)), (None, None));
    }
}
