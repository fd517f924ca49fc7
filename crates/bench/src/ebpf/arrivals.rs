//! The program of `arrivals.bpf.c`: records the arrival time of each packet at the far end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::{failed, keep_program, load_object, missing};
use crate::Error;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/arrivals.o"));
const NAME: &str = "record_arrival";
const MAP: &str = ".data.arrivals";
/// Number of chains, distinguished by destination port modulo this. Equal in `arrivals.bpf.c`.
pub(crate) const CHAINS: usize = 8;
/// Packets of a chain, distinguished by IP identification modulo this. Equal in `arrivals.bpf.c`.
pub(crate) const PACKETS: usize = 8192;

/// The loaded program and its map.
pub(crate) struct ArrivalRecorder {
    program: OwnedFd,
    map: MapHandle,
}

impl ArrivalRecorder {
    pub(crate) fn load() -> Result<Self, Error> {
        let loaded = load_object(OBJECT, &[NAME], |_, _| Ok(()))?;
        let map = loaded.maps().find(|map| map.name() == MAP);
        let map = map.ok_or_else(|| missing(MAP))?;
        Ok(Self {
            program: keep_program(&loaded, NAME)?,
            map: MapHandle::try_from(&map).map_err(|cause| failed(NAME, "keep its map", &cause))?,
        })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Last arrival of each packet of each chain.
    pub(crate) fn read(&self) -> Result<Arrivals, Error> {
        let value = self
            .map
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| failed(NAME, "read its arrivals", &cause))?;
        Ok(Arrivals(value.unwrap_or_default()))
    }
}

/// Times of CLOCK_MONOTONIC, ns.
pub(crate) struct Arrivals(Vec<u8>);

impl Arrivals {
    /// Last arrival of a packet at a port. `None` if it never arrived.
    pub(crate) fn of(&self, port: u16, packet: u16) -> Option<u64> {
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
    fn packets_are_distinguished() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: loading eBPF programs needs root");
            return;
        }
        let recorder = ArrivalRecorder::load().unwrap();
        let mut frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9003, 64);
        frame[18..20].copy_from_slice(&8193_u16.to_be_bytes());
        let before = myelin_measure::clock::now_ns();
        test_run::run(recorder.program(), Hook::Xdp, &TestRun::new(&frame)).unwrap();
        let arrivals = recorder.read().unwrap();
        let at = arrivals.of(9003, 1).unwrap();
        assert!((before..=myelin_measure::clock::now_ns()).contains(&at));
        assert_eq!((arrivals.of(9003, 0), arrivals.of(9002, 1)), (None, None));
    }
}
