//! `myelin feed`: runs one function on packets from memory, for `myelin bench`. The first line of its input is what to feed (JSON); each further one is a number of
//! packets, whose processing times, in nanoseconds, are the line that answers it.

use std::fmt::Write as _;
use std::io::{BufRead, Write as _, stdin, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use myelin_api::ApiError;
use myelin_dataplane::feed::{Feed, FeedConfig};

/// By how much a run begins earlier and ends later than what is timed, so that others that run beside it have company all the time: they are told one after the
/// other, and have to be woken.
const MARGIN: Duration = Duration::from_millis(3);

/// Runs until its input ends.
pub(crate) fn execute() -> Result<ExitCode, ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::failed(format!("feed: {error}"));
    let mut lines = stdin().lock().lines().map_while(Result::ok);
    let diet: FeedConfig =
        serde_json::from_str(&lines.next().unwrap_or_default()).map_err(|error| failed(&error))?;
    let mut feed = Feed::new(&diet).map_err(|error| failed(&error))?;
    let starved = || failed(&"nothing arrives at the function: all is lost or refused on the way");
    for line in lines {
        let packets: u32 = line.trim().parse().map_err(|error| failed(&error))?;
        alongside(&mut feed).ok_or_else(starved)?;
        let mut came_out = 0;
        let mut times = Vec::with_capacity(packets as usize);
        for _ in 0..packets {
            let fed = feed.feed().ok_or_else(starved)?;
            came_out += fed.came_out;
            times.push(fed.ns);
        }
        alongside(&mut feed).ok_or_else(starved)?;
        if came_out < packets as usize / 2 {
            return Err(failed(
                &"the function drops what it is fed, so its times mean nothing",
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

/// Runs untimed for a while.
fn alongside(feed: &mut Feed) -> Option<()> {
    let start = Instant::now();
    while start.elapsed() < MARGIN {
        feed.feed()?;
    }
    Some(())
}
