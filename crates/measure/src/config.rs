//! Configuration of a probe: the packets, their times, and the waiting of both ends.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use myelin_linux::affinity;
use myelin_metrics::{Cores, Mode};

use crate::Error;
use crate::payload::HEADER_BYTES;
use crate::tracker::LONGEST_SAMPLE_NS;

/// Maximum number of packets of one repeat. The probe keeps 20 bytes for each packet until the end
/// of the repeat.
pub const MAX_COUNT: u32 = 1_000_000;
/// Length of the IPv4 (RFC 791) and UDP (RFC 768) headers before the payload.
const IPV4_UDP_BYTES: usize = 20 + 8;
/// Length of the IPv6 (RFC 8200) and UDP headers before the payload.
const IPV6_UDP_BYTES: usize = 40 + 8;

/// Configuration of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Sets how both ends wait for packets.
    pub mode: Mode,
    /// Destination of the client's packets.
    pub destination: SocketAddr,
    /// UDP payload, bytes: from [`HEADER_BYTES`] to the largest payload that fits in `mtu`.
    pub payload_bytes: usize,
    /// Largest IP packet of the path, bytes.
    pub mtu: usize,
    /// Time between two sends on an absolute timeline, independent of answers. Zero means back to
    /// back: the client sends the next packet after the answer to the last packet, or after its
    /// loss.
    pub interval: Duration,
    /// Number of packets of a repeat, at most [`MAX_COUNT`].
    pub count: u32,
    /// Number of repeats. Each repeat is one sample of the confidence interval.
    pub repeats: u32,
    /// Number of packets before the first repeat. The result does not include these packets.
    pub warm_up: u32,
    /// A packet counts as lost after this time without an answer; at most 4.2 s.
    pub timeout: Duration,
    /// The measurement ends after this time, with the results so far.
    pub deadline: Duration,
    /// The xor of the keys of all xor functions on the forward path.
    pub forward_key: u8,
    /// The xor of the keys of all xor functions on the reverse path.
    pub reply_key: u8,
    /// Cores of the threads. `None` leaves the choice to the scheduler.
    pub cores: Option<Cores>,
    /// Whether to keep the times of every packet (4 bytes for each time).
    pub keep_samples: bool,
    /// The result contains the share of packets with a round trip within this bound.
    pub rtt_bound: Option<Duration>,
    /// The result contains the share of packets with a one-way delay to the server within this
    /// bound.
    pub forward_bound: Option<Duration>,
}

impl Config {
    /// Makes the configuration of CALVIN's measurement: 500 packets of 256 B, one packet every 5
    /// ms, 50 repeats. The mode is inline.
    pub fn new(destination: SocketAddr) -> Self {
        Self {
            mode: Mode::Inline,
            destination,
            payload_bytes: 256,
            mtu: 1500,
            interval: Duration::from_millis(5),
            count: 500,
            repeats: 50,
            warm_up: 50,
            timeout: Duration::from_millis(200),
            deadline: Duration::from_secs(300),
            forward_key: 0,
            reply_key: 0,
            cores: None,
            keep_samples: false,
            rtt_bound: None,
            forward_bound: None,
        }
    }

    /// Returns the largest payload of a packet to `destination` within `mtu`, bytes.
    pub fn max_payload_bytes(destination: SocketAddr, mtu: usize) -> usize {
        mtu.saturating_sub(if destination.is_ipv4() {
            IPV4_UDP_BYTES
        } else {
            IPV6_UDP_BYTES
        })
    }

    /// Number of packets of all repeats.
    pub fn total(&self) -> u64 {
        u64::from(self.count) * u64::from(self.repeats)
    }

    /// Checks that this machine can run the probe.
    ///
    /// # Errors
    /// [`Error::Option`] with the option, its value and its range.
    pub fn validate(&self) -> Result<(), Error> {
        check_payload(self.destination, self.payload_bytes, self.mtu)?;
        check_range("count", self.count, 1..=MAX_COUNT, "; use repeats for more")?;
        check_range("warm_up", self.warm_up, 0..=MAX_COUNT, "")?;
        if self.repeats == 0 {
            return Err(Error::option("repeats", 0, "expected at least 1"));
        }
        let longest = Duration::from_nanos(LONGEST_SAMPLE_NS);
        if self.timeout.is_zero() || self.timeout > longest {
            return Err(Error::option(
                "timeout",
                format!("{:?}", self.timeout),
                "expected more than 0 and at most 4.2 s",
            ));
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(86_400) {
            return Err(Error::option(
                "deadline",
                format!("{:?}", self.deadline),
                "expected more than 0 and at most 24 h",
            ));
        }
        if let Some(cores) = self.cores {
            let used = [cores.client, cores.server];
            check_cores(if self.mode == Mode::Inline {
                &used[..1]
            } else {
                &used
            })?;
        }
        if self.mode == Mode::Spin {
            check_polling_cores(self.cores)?;
        }
        Ok(())
    }
}

pub(crate) fn check_payload(
    destination: SocketAddr,
    payload_bytes: usize,
    mtu: usize,
) -> Result<(), Error> {
    let max = Config::max_payload_bytes(destination, mtu);
    if (HEADER_BYTES..=max).contains(&payload_bytes) {
        return Ok(());
    }
    Err(Error::option(
        "payload_bytes",
        payload_bytes,
        format!("expected {HEADER_BYTES} (the probe's header) to {max} (an MTU of {mtu})"),
    ))
}

/// Checks that an option is within a range. The error text ends with `remedy`.
pub(crate) fn check_range<T: PartialOrd + Display>(
    option: &'static str,
    value: T,
    range: RangeInclusive<T>,
    remedy: &str,
) -> Result<(), Error> {
    if range.contains(&value) {
        return Ok(());
    }
    let expected = format!("expected {} to {}{remedy}", range.start(), range.end());
    Err(Error::option(option, value, expected))
}

fn check_cores(cores: &[usize]) -> Result<(), Error> {
    let usable = affinity::get(0)?;
    match cores.iter().find(|core| !usable.contains(core)) {
        Some(core) => Err(Error::option(
            "cores",
            core,
            format!("this process may run on {usable:?}"),
        )),
        None => Ok(()),
    }
}

/// Refuses two polling threads on one core, because they would wait for the scheduler, not for
/// packets.
pub(crate) fn check_polling_cores(cores: Option<Cores>) -> Result<(), Error> {
    if let Some(Cores { client, server }) = cores {
        check_cores(&[client, server])?;
        if client == server {
            return Err(Error::option(
                "cores",
                client,
                "two polling threads need two different cores; use mode inline on one core",
            ));
        }
    } else if affinity::get(0)?.len() < 2 {
        return Err(Error::option(
            "mode",
            "spin",
            "mode spin polls on two cores, and this process may run on only one; use inline or blocking",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Config {
        Config::new("127.0.0.1:9000".parse().unwrap())
    }

    fn validation_error(change: impl FnOnce(&mut Config)) -> String {
        let mut config = valid();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_calvin() {
        let config = valid();
        config.validate().unwrap();
        assert_eq!(
            (config.payload_bytes, config.count, config.repeats),
            (256, 500, 50)
        );
        assert_eq!(config.interval, Duration::from_millis(5));
        assert_eq!(config.total(), 25_000);
    }

    #[test]
    fn payload_is_from_the_header_to_the_mtu() {
        let v4 = "10.0.0.2:9".parse().unwrap();
        let v6 = "[fd00::2]:9".parse().unwrap();
        assert!(check_payload(v4, 48, 1500).is_ok() && check_payload(v4, 1472, 1500).is_ok());
        assert!(check_payload(v6, 1452, 1500).is_ok() && check_payload(v6, 1453, 1500).is_err());
        let text = check_payload(v4, 1473, 1500).unwrap_err().to_string();
        assert_eq!(
            text,
            "probe option `payload_bytes` is 1473: expected 48 (the probe's header) to 1472 (an MTU of 1500)"
        );
        assert!(check_payload(v4, 47, 1500).is_err() && check_payload(v4, 48, 20).is_err());
    }

    #[test]
    fn validation_errors_name_option_and_range() {
        assert!(validation_error(|c| c.count = 0).contains("`count` is 0: expected 1 to 1000000"));
        assert!(validation_error(|c| c.count = MAX_COUNT + 1).contains("use repeats"));
        assert!(validation_error(|c| c.warm_up = MAX_COUNT + 1).contains("`warm_up`"));
        assert!(validation_error(|c| c.repeats = 0).contains("`repeats` is 0"));
        assert!(
            validation_error(|c| c.timeout = Duration::from_secs(5)).contains("`timeout` is 5s")
        );
        assert!(validation_error(|c| c.timeout = Duration::ZERO).contains("`timeout`"));
        assert!(validation_error(|c| c.deadline = Duration::ZERO).contains("`deadline`"));
        let far = Cores {
            client: 1000,
            server: 0,
        };
        assert!(validation_error(|c| c.cores = Some(far)).contains("`cores` is 1000"));
        let shared = Cores {
            client: 0,
            server: 0,
        };
        assert!(
            validation_error(|c| (c.mode, c.cores) = (Mode::Spin, Some(shared)))
                .contains("two different")
        );
        let mut blocking = valid();
        (blocking.mode, blocking.cores) = (Mode::Blocking, Some(shared));
        blocking.validate().unwrap();
    }

    #[test]
    fn modes_parse_as_they_display() {
        for mode in [Mode::Inline, Mode::Spin, Mode::Blocking] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        assert!(
            "poll"
                .parse::<Mode>()
                .unwrap_err()
                .contains("inline, spin or blocking")
        );
    }
}
