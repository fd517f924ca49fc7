//! Processes that run a function on packets from their own memory, and tell what each took.

use std::path::Path;
use std::process::Command;

use myelin_dataplane::feed::FeedConfig;

use super::{Error, Runner};

const FEED: &str = "myelin feed";
const PLAIN_AES: &str = "aes_ctr";
const PLAIN_AES_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aes_ctr"));

/// A process with a function that never waits for packets; idle between two runs.
pub(crate) struct FeedResult(Runner);

impl FeedResult {
    /// One of Myelin's functions, in a process of `program`.
    pub(crate) fn function(program: &Path, diet: &FeedConfig) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.arg("feed");
        let mut runner = Runner::start(FEED, command)?;
        let diet = serde_json::to_string(diet).map_err(|error| Error::System {
            name: FEED,
            step: "telling it what to do",
            source: error.into(),
        })?;
        runner.begin(&diet)?;
        Ok(Self(runner))
    }

    /// AES-128 in counter mode, a byte at a time in plain C, on payloads of that length; every run has so many packets.
    pub(crate) fn plain_aes(payload_bytes: usize, packets: u32) -> Result<Self, Error> {
        let arguments = [
            payload_bytes.to_string(),
            packets.to_string(),
            "1".to_owned(),
        ];
        Runner::start_image(PLAIN_AES, PLAIN_AES_IMAGE, &arguments).map(Self)
    }

    /// Begins a run of so many packets.
    pub(crate) fn begin(&mut self, packets: u32) -> Result<(), Error> {
        self.0.begin(&packets.to_string())
    }

    /// What each packet of the run took, ns.
    pub(crate) fn end(&mut self) -> Result<Vec<f64>, Error> {
        self.0.end()
    }
}
