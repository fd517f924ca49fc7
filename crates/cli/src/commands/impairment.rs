//! Options of `myelin link` for delay, rate and loss.

use myelin_api::{ImpairmentChange, units};

/// Changes of one direction of a link, or of both. What is not named stays as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct ImpairmentOptions {
    /// Change only the direction of the packets that this end sends.
    #[arg(long, value_name = "END")]
    pub(crate) from: Option<String>,
    /// The propagation delay of each direction.
    #[arg(long, value_parser = parse_delay)]
    delay: Option<u64>,
    /// The largest deviation from the delay; at most the delay.
    #[arg(long, value_parser = parse_delay)]
    jitter: Option<u64>,
    /// The rate of each direction, a second; 0bit: no limit.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    bandwidth: Option<u64>,
    /// The longest queue before the rate; 0: chosen from the rate.
    #[arg(long, value_name = "PACKETS")]
    queue: Option<u32>,
    /// The share of packets that the link loses, for example 1%.
    #[arg(long, value_name = "SHARE", value_parser = parse_loss)]
    loss: Option<u32>,
    /// The mean number of packets lost in a row.
    #[arg(long, value_name = "PACKETS")]
    burst: Option<u32>,
}

impl ImpairmentOptions {
    /// Returns the change; `None` without an option.
    pub(crate) fn change(&self) -> Option<ImpairmentChange> {
        let change = ImpairmentChange {
            delay_ns: self.delay,
            jitter_ns: self.jitter,
            rate_bps: self.bandwidth,
            queue_packets: self.queue,
            loss_ppm: self.loss,
            loss_burst: self.burst,
        };
        (change != ImpairmentChange::default()).then_some(change)
    }
}

fn parse_delay(text: &str) -> Result<u64, String> {
    units::DURATION
        .parse(text)
        .map_err(|fault| fault.to_string())
}

fn parse_rate(text: &str) -> Result<u64, String> {
    units::BIT_RATE
        .parse(text)
        .map_err(|fault| fault.to_string())
}

fn parse_loss(text: &str) -> Result<u32, String> {
    const PPM_PER_PERCENT: f64 = 10_000.0;
    let percent = units::parse_percent(text).map_err(|fault| fault.to_string())?;
    Ok((percent * PPM_PER_PERCENT).round() as u32)
}
