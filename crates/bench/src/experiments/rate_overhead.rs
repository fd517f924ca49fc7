//! `rate-overhead`: what policer and shaper take of a chain's throughput, and of a packet's time (Rathore et al. 2022, Fig. 7).

use super::policing;
use crate::{Error, Experiment, Findings, Monitor, Options};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "rate-overhead",
    about: "throughput with nothing, shaper, policer and shaper: ours against tc's; the policer's time by test runs",
    run,
    plots: &[],
};

fn run(options: &Options, monitor: &Monitor<'_>) -> Result<Findings, Error> {
    let mut findings = Findings::default();
    policing::run(options, monitor, &mut findings)?;
    Ok(findings)
}
