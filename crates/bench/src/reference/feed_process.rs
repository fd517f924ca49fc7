//! Processes that run a function on packets in their memory, and report the time of each packet.

use std::path::Path;
use std::process::Command;

use myelin_dataplane::feed::FeedConfig;

use super::{Error, Runner};

const FEED: &str = "myelin feed";
const PLAIN_AES: &str = "aes_ctr";
const PLAIN_AES_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aes_ctr"));

/// A process that runs a function without waiting for packets. It is idle between runs.
pub(crate) struct FeedProcess(Runner);

impl FeedProcess {
    /// One of Myelin's functions, in a process of `program`.
    pub(crate) fn function(program: &Path, config: &FeedConfig) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.arg("feed");
        let mut runner = Runner::start(FEED, command)?;
        let config = serde_json::to_string(config).map_err(|error| Error::System {
            name: FEED,
            step: "sending its configuration",
            source: error.into(),
        })?;
        runner.begin(&config)?;
        Ok(Self(runner))
    }

    /// AES-128 in counter mode, byte by byte in plain C, with `packets` payloads in each run.
    pub(crate) fn plain_aes(payload_bytes: usize, packets: u32) -> Result<Self, Error> {
        let arguments = [
            payload_bytes.to_string(),
            packets.to_string(),
            "1".to_owned(),
        ];
        Runner::start_image(PLAIN_AES, PLAIN_AES_IMAGE, &arguments).map(Self)
    }

    /// Starts a run of `packets` packets.
    pub(crate) fn begin(&mut self, packets: u32) -> Result<(), Error> {
        self.0.begin(&packets.to_string())
    }

    /// Waits for the end of the run. Returns the time of each packet, ns.
    pub(crate) fn end(&mut self) -> Result<Vec<f64>, Error> {
        self.0.end()
    }
}
