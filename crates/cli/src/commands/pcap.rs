//! `myelin pcap`: writes the frames of a topology's link to a pcap file.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use myelin_api::{ApiError, Client, RunDir, TopologyEnd};
use myelin_linux::capture::{Capture, CapturedFrame, MAX_BYTES};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;

use super::interrupt;
use super::link::{find_link, split_name};
use crate::output;

/// First bytes of a pcap file with times in nanoseconds, in the byte order of the file.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Version 2.4 of the format.
const VERSION: [u16; 2] = [2, 4];
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;

/// Arguments of `myelin pcap`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin pcap h1-s1 h1.pcap               Ctrl-C ends it\n  \
    myelin pcap h1-s1 h1.pcap --count 100\n  myelin pcap h1-s1 > h1.pcap\n\n\
    Both directions, at the link's end at a switch. `myelin pcap h1-s1 | tcpdump -nr -` shows the\n\
    frames as they come. Hosts leave segmentation and checksums to their links, so\n\
    frames may be longer than the MTU, and checksums may be incomplete."
)]
pub(crate) struct Arguments {
    /// The link's name, or its two ends: `A-B`, or `TOPOLOGY/A-B`.
    link: String,
    /// The file; `-` or none writes to standard output.
    file: Option<PathBuf>,
    /// Stop after this number of frames.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time.
    #[arg(long, value_name = "TIME", value_parser = output::parse_duration)]
    duration: Option<Duration>,
}

/// Captures until an end condition holds.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed("no agent runs, so there is no link: `myelin up FILE` makes a topology")
    })?;
    let (topology, link) = split_name(&arguments.link);
    let found = find_link(&client.topologies()?, topology, link)?;
    // The end at a switch is in the agent's namespace.
    let [one, other] = &found.ends;
    let end = if one.netns.is_some() { other } else { one };
    let to_file = arguments
        .file
        .as_ref()
        .filter(|file| file.as_os_str() != "-");
    let out: Box<dyn Write + Send> = match to_file {
        Some(file) => Box::new(File::create(file).map_err(|error| {
            ApiError::usage(format!("cannot write {}: {error}", file.display()))
        })?),
        None if io::stdout().is_terminal() => {
            return Err(ApiError::usage(
                "a capture is no text for a terminal: name a file, or write `| tcpdump -nr -` behind the command",
            ));
        }
        None => Box::new(io::stdout()),
    };
    let interrupted = interrupt::catch_signals()?;
    let namespace = end
        .netns
        .as_deref()
        .map_or_else(Netns::current, Netns::open);
    let namespace = namespace.map_err(ApiError::failed)?;
    let captured = namespace.enter(|| capture(arguments, end, out, interrupted));
    let frames = captured.map_err(ApiError::failed)??;
    if let Some(file) = to_file {
        println!(
            "{frames} frames of link {} in {}",
            found.name,
            file.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes frames until an end condition holds; returns their number.
fn capture(
    arguments: &Arguments,
    end: &TopologyEnd,
    out: impl Write,
    interrupted: &AtomicBool,
) -> Result<u64, ApiError> {
    let mut netlink = Netlink::open().map_err(ApiError::failed)?;
    let index = netlink
        .link(&end.interface)
        .map_err(ApiError::failed)?
        .index;
    let mut capture = Capture::open(index).map_err(ApiError::failed)?;
    let failed = |error: io::Error| ApiError::failed(format!("cannot write the capture: {error}"));
    let mut out = BufWriter::new(out);
    write_header(&mut out)
        .and_then(|()| out.flush())
        .map_err(failed)?;
    // Scripts wait for this line before they send packets.
    eprintln!("capturing at {} {}", end.node, end.interface);
    let (started, mut frames) = (Instant::now(), 0);
    let is_complete = |frames: u64| {
        interrupted.load(Ordering::Relaxed)
            || arguments.count.is_some_and(|count| frames >= count)
            || arguments
                .duration
                .is_some_and(|limit| started.elapsed() >= limit)
    };
    while !is_complete(frames) {
        let frame = capture.next_frame().map_err(|error| {
            ApiError::failed(format!(
                "link {}: the capture ended: {error}",
                arguments.link
            ))
        })?;
        match frame {
            Some(frame) => {
                write_frame(&mut out, &frame).map_err(failed)?;
                frames += 1;
            }
            // A reader of the pipe sees all frames before a pause.
            None => out.flush().map_err(failed)?,
        }
    }
    // The kernel may hold copies of frames that passed before the end.
    capture.stop().map_err(ApiError::failed)?;
    while arguments.count.is_none_or(|count| frames < count)
        && let Ok(Some(frame)) = capture.next_frame()
    {
        write_frame(&mut out, &frame).map_err(failed)?;
        frames += 1;
    }
    out.flush().map_err(failed)?;
    Ok(frames)
}

fn write_header(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC.to_ne_bytes())?;
    for part in VERSION {
        out.write_all(&part.to_ne_bytes())?;
    }
    // Time zone and accuracy: always 0.
    for field in [0, 0, MAX_BYTES as u32, ETHERNET] {
        out.write_all(&field.to_ne_bytes())?;
    }
    Ok(())
}

fn write_frame(out: &mut impl Write, frame: &CapturedFrame<'_>) -> io::Result<()> {
    let seconds = frame.time.as_secs() as u32;
    let (kept, length) = (frame.bytes.len() as u32, frame.length as u32);
    for field in [seconds, frame.time.subsec_nanos(), kept, length] {
        out.write_all(&field.to_ne_bytes())?;
    }
    out.write_all(frame.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_documented_layout() {
        let mut file = Vec::new();
        write_header(&mut file).unwrap();
        let frame = CapturedFrame {
            time: Duration::new(7, 9),
            bytes: &[1, 2],
            length: 60,
        };
        write_frame(&mut file, &frame).unwrap();
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(16), word(20)), (MAGIC, 262_144, 1));
        assert_eq!([word(24), word(28), word(32), word(36)], [7, 9, 2, 60]);
        assert_eq!(file[40..], [1, 2]);
    }
}
