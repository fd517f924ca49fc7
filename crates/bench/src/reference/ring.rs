//! The reference program of `rings`: DPDK's ring between two cores.

use super::{Error, Runner};

const NAME: &str = "ring_throughput";
#[cfg(has_dpdk)]
const IMAGE: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/ring_throughput")));
#[cfg(not(has_dpdk))]
const IMAGE: Option<&[u8]> = None;

/// The program, idle between runs. A drop ends it.
pub(crate) struct RingThroughput(Runner);

impl RingThroughput {
    /// Starts the program on the cores of producer and consumer. A run has `windows` windows of
    /// `batches` batches.
    pub(crate) fn start(cores: [usize; 2], windows: usize, batches: usize) -> Result<Self, Error> {
        let image = IMAGE.ok_or(Error::Absent {
            name: NAME,
            reason: env!("MYELIN_NO_DPDK"),
        })?;
        let arguments = [cores[0], cores[1], windows, batches].map(|number| number.to_string());
        Runner::start_image(NAME, image, &arguments).map(Self)
    }

    /// Makes a run. Returns the time of each window, ns.
    pub(crate) fn run(&mut self) -> Result<Vec<f64>, Error> {
        self.0.run("run")
    }
}
