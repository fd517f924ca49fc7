//! `myelin feed`: runs one function on packets from memory, for `myelin bench`. The first line of
//! standard input is the configuration (JSON). Each further line is a number of packets; the answer
//! is a line with the processing time of each packet, nanoseconds.

use std::fmt::Write as _;
use std::io::{BufRead, Write as _, stdin, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use myelin_api::ApiError;
use myelin_dataplane::feed::{Feed, FeedConfig};

/// Duration of the untimed work before and after the timed packets. Parallel feeds start one after
/// the other, so the margin keeps all feeds busy while any feed is timed.
const MARGIN: Duration = Duration::from_millis(3);

/// Feeds packets until standard input ends.
pub(crate) fn execute() -> Result<ExitCode, ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::failed(format!("feed: {error}"));
    let mut lines = stdin().lock().lines().map_while(Result::ok);
    let config: FeedConfig =
        serde_json::from_str(&lines.next().unwrap_or_default()).map_err(|error| {
            failed(&format!(
                "cannot parse the configuration: {error}; only `myelin bench` runs this command"
            ))
        })?;
    let mut feed = Feed::new(&config).map_err(|error| failed(&error))?;
    let no_packet_error = || failed(&"no packet reaches the function");
    for line in lines {
        let packets: u32 = line.trim().parse().map_err(|error| failed(&error))?;
        feed_untimed(&mut feed).ok_or_else(no_packet_error)?;
        let mut emitted = 0;
        let mut times = Vec::with_capacity(packets as usize);
        for _ in 0..packets {
            let fed = feed.feed().ok_or_else(no_packet_error)?;
            emitted += fed.packets_out;
            times.push(fed.ns);
        }
        feed_untimed(&mut feed).ok_or_else(no_packet_error)?;
        if emitted < packets as usize / 2 {
            return Err(failed(
                &"the function drops most packets, so the measured times are meaningless",
            ));
        }
        let mut answer = String::with_capacity(8 * times.len());
        for ns in times {
            let _ = write!(answer, "{ns} ");
        }
        let mut out = stdout().lock();
        writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .map_err(|error| failed(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Feeds packets for [`MARGIN`], untimed.
fn feed_untimed(feed: &mut Feed) -> Option<()> {
    let start = Instant::now();
    while start.elapsed() < MARGIN {
        feed.feed()?;
    }
    Some(())
}
