//! The reference program of `rings`: DPDK's ring between two cores.

use super::{Error, Runner};

const NAME: &str = "ring_throughput";
#[cfg(has_dpdk)]
const IMAGE: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/ring_throughput")));
#[cfg(not(has_dpdk))]
const IMAGE: Option<&[u8]> = None;

/// The program, idle between two runs. Dropping it ends it.
pub(crate) struct RingThroughput(Runner);

impl RingThroughput {
    /// Starts it, to run on the cores of producer and consumer, so many windows of so many batches a run.
    pub(crate) fn start(cores: [usize; 2], windows: usize, batches: usize) -> Result<Self, Error> {
        let image = IMAGE.ok_or(Error::Absent {
            name: NAME,
            reason: env!("MYELIN_NO_DPDK"),
        })?;
        let arguments = [cores[0], cores[1], windows, batches].map(|number| number.to_string());
        Runner::start_image(NAME, image, &arguments).map(Self)
    }

    /// One run: the nanoseconds that each window took.
    pub(crate) fn run(&mut self) -> Result<Vec<f64>, Error> {
        self.0.run("run")
    }
}
