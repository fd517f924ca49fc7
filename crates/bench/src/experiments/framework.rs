//! `framework`: the framework's cost of a user-space function and packet.

use std::hint::black_box;
use std::time::Instant;

use myelin_dataplane::replay_port::{Replay, ReplayPort};
use myelin_dataplane::umem::{Borrower, FrameMemory};
use myelin_dataplane::{Forwarder, SocketId, Stats, Umem, UserChain, UserExit, UserSegment};
use myelin_metrics::stats::{CONFIDENCE, Deployments, Estimate, median_ci};
use myelin_spec::{FunctionConfig, ReplayTimes};

use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Findings, Row, Session, frames};

const LENGTHS: [u8; 5] = [1, 2, 8, 16, 32];
/// Batch size, and largest addition of a further function to a packet's time, ns.
const BATCHES: [(u16, Option<f64>); 3] = [(1, Some(3.0)), (8, None), (32, Some(0.6))];
const FRAMES: u32 = 512;
const FRAME_SIZE: u32 = 2048;
/// Packets of a window. It takes some tens of microseconds, so most windows are not interrupted.
const PACKETS: u32 = 512;
/// Windows of a figure. The figure is their median.
const WINDOWS: usize = 40;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "framework",
    about: "processing time of 1 to 32 user-space functions that do nothing, at batches of 1, 8 and 32, and the cost of each further one",
    differs: "",
    run,
    plots: include_str!("../../plots/framework.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sampling = Sampling::of("chains in user space").rounds(10);
    let deploy = |turns: &mut Turns<'_>| {
        let memories = (0..BATCHES.len() * LENGTHS.len())
            .map(|_| FrameMemory::map(&Umem::create(FRAMES, FRAME_SIZE)?))
            .collect::<Result<Vec<_>, _>>()?;
        let mut loops = Vec::new();
        for ((batch, length), memory) in subjects().zip(&memories) {
            loops.push(create_forwarder(batch, length, memory)?);
        }
        turns.measure(loops.len(), |subject| Ok(packet_ns(&mut loops[subject])))
    };
    let claims = |samples: &Deployments, (): &()| {
        let claim = |(index, (batch, bound)): (usize, (u16, Option<f64>))| {
            let id = format!("framework a user function and packet, ns, batch {batch}");
            let last = (index + 1) * LENGTHS.len() - 1;
            Some(Claim::at_most(id, each_further(samples, last), bound?))
        };
        BATCHES.into_iter().enumerate().filter_map(claim).collect()
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (subject, (batch, length)) in subjects().enumerate() {
        findings.add_row(
            Row::of("chains in user space")
                .with("batch", batch)
                .with("functions", length)
                .with_estimate("packet", "_ns", samples.median(subject))
                .with_estimate("each_further", "_ns", each_further(&samples, subject)),
        );
    }
    findings.set("packets_a_window", PACKETS);
    Ok(())
}

/// What a further function adds to a packet's time, ns. `None` with one function.
fn each_further(samples: &Deployments, subject: usize) -> Option<Estimate> {
    let length = subject % LENGTHS.len();
    let more = f64::from(LENGTHS[length]) - 1.0;
    samples.median_of(|round| (round(subject) - round(subject - length)) / more)
}

/// All batch sizes with all lengths.
fn subjects() -> impl Iterator<Item = (u16, u8)> {
    BATCHES
        .into_iter()
        .flat_map(|(batch, _)| LENGTHS.into_iter().map(move |length| (batch, length)))
}

/// A worker's loop with one chain, over a port with an endless supply of packets.
fn create_forwarder(
    batch: u16,
    length: u8,
    memory: &FrameMemory,
) -> Result<Forwarder<'_, ReplayPort>, Error> {
    let stats = Stats::create()?;
    let mut forwarder = Forwarder::in_process(memory, batch, &stats)?;
    let chain = UserChain {
        spi: 1,
        generation: 0,
        positions: length,
        segments: vec![UserSegment {
            first_position: 0,
            functions: vec![FunctionConfig::Forward.into(); length.into()],
            exit: UserExit::Port(SocketId::of_port(0)),
            shaping: None,
        }],
    };
    forwarder.deploy(&chain, &stats)?;
    let packet = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 256);
    let replay = Replay {
        packets: vec![packet],
        chain: Some((chain.spi, chain.generation)),
        times: ReplayTimes::Endless,
        end: None,
        ring: FRAMES,
    };
    if let Some(borrower) = Borrower::new(0) {
        let port = ReplayPort::new(borrower, memory, replay);
        let fault = |problem| Error::system("make a replay port", std::io::Error::other(problem));
        forwarder.add_port(0, port.map_err(fault)?);
    }
    forwarder.start();
    Ok(forwarder)
}

/// Median over the windows.
fn packet_ns(forwarder: &mut Forwarder<'_, ReplayPort>) -> f64 {
    let windows: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let start = Instant::now();
            let mut packets = 0;
            while packets < PACKETS {
                packets += black_box(&mut *forwarder).process_batches().max(1);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(packets)
        })
        .collect();
    median_ci(&windows, CONFIDENCE).map_or(f64::NAN, |median| median.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_processes_a_full_batch() {
        for (batch, _) in BATCHES {
            let memory = FrameMemory::map(&Umem::create(FRAMES, FRAME_SIZE).unwrap()).unwrap();
            let mut forwarder = create_forwarder(batch, 2, &memory).unwrap();
            for _ in 0..2 * FRAMES {
                assert_eq!(forwarder.process_batches(), u32::from(batch));
            }
            assert!(packet_ns(&mut forwarder) > 0.0);
        }
    }
}
