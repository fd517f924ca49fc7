//! A conformance monitor run over a trace of frames and their times, as the kernel runs it at an interface.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::MapHandle;
use myelin_packet::traffic::Profile;

use super::{TestRun, run};
use crate::conform::{self, Seen, Watch};
use crate::{Error, Hook};

/// A monitor that takes the time from the packets.
#[derive(Debug)]
pub struct Trial {
    program: OwnedFd,
    map: MapHandle,
    profile: Profile,
}

impl Trial {
    /// One that has seen nothing.
    ///
    /// # Errors
    /// The kernel does not take the program or its map.
    pub fn new(watch: &Watch) -> Result<Self, Error> {
        let (program, map) = conform::load(watch, true)?;
        Ok(Self {
            program,
            map,
            profile: watch.profile,
        })
    }

    /// Shows it a frame that arrives at [`TestRun::arrival_ns`]; what it lets the kernel do with it.
    ///
    /// # Errors
    /// The kernel does not run programs on such a frame.
    pub fn see(&self, frame: &TestRun<'_>) -> Result<u32, Error> {
        Ok(run(self.program.as_fd(), Hook::Tcx, frame)?.verdict)
    }

    /// What it has seen.
    ///
    /// # Errors
    /// The kernel does not give it.
    pub fn seen(&self) -> Result<Seen, Error> {
        conform::read(&self.map, &self.profile)
    }
}
