//! Part of `classifier`: the front door with 10 to 10,000 chains.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use myelin_kernel::{Capacity, Hook, LoadedChain, Plane, Port, test_run};
use myelin_metrics::stats::Deployments;
use myelin_packet::five_tuple::UDP;
use myelin_packet::{Match, Prefix};
use myelin_spec::FunctionConfig;

use super::classifier::TestPackets;
use crate::frames::{self, SplitMix};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Findings, Row, Session, ebpf};

const COUNTS: [usize; 4] = [10, 100, 1000, 10_000];
/// Loaded chains if only the search is measured. The matches select them in turn.
const SHARED: usize = 10;
/// Loaded chains in place of the largest number, in a quick and in a whole run. The packets then
/// select 160 and 240 different programs on average, 250 of 10,000. A program needs two open files
/// and a millisecond, so 10,000 would exceed the usual limits of both.
const LOADED: [usize; 2] = [256, 2048];
/// Largest cost of the most chains over that of the fewest.
const BOUND: f64 = 1.2;
/// Number of packets, each for a random chain.
const FRAMES: usize = 256;

pub(super) fn run(hook: Hook, session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let most = COUNTS[COUNTS.len() - 1];
    let own = session.effort.choose(LOADED[0], LOADED[0], LOADED[1]);
    // In the last door each chain has its program and counters, which cause cache misses.
    let doors = COUNTS
        .map(|count| (count, SHARED))
        .into_iter()
        .chain([(most, own)]);
    // The function and the egress behind a front door.
    let behind = COUNTS.len() + 1;
    let sampling = Sampling::of(format!("chains at {hook}"))
        .rounds(5)
        .share(0.25);
    let deploy = |turns: &mut Turns<'_>| {
        let doors = doors
            .clone()
            .map(|(count, loaded)| Door::new(hook, count, loaded, session))
            .collect::<Result<Vec<_>, _>>()?;
        let mut programs: Vec<_> = doors.iter().map(|door| door.program.as_fd()).collect();
        let function = doors[0].chains[0].program(0).ok_or(Error::Cancelled)?;
        programs.push(function);
        let _entries = ebpf::DispatcherEntries::add(hook, &programs)?;
        turns.measure(doors.len() + 1, |subject| match doors.get(subject) {
            Some(door) => door.packets.mean_ns(door.program.as_fd(), hook, false),
            None => doors[0].packets.mean_ns(function, hook, true),
        })
    };
    let alone = |round: &dyn Fn(usize) -> f64, door| (round(door) - round(behind)).max(1.0);
    let times = |samples: &Deployments, door| {
        samples.median_of(|round| alone(round, door) / alone(round, 0))
    };
    // Three definitions of the classifier's cost: the search alone, the search with the cache
    // misses of other chains' programs and counters, and the whole path with them. The second is
    // the strictest.
    let claims = |samples: &Deployments, (): &()| {
        let separate = behind - 1;
        [
            ("door", times(samples, COUNTS.len() - 1)),
            ("door, separate programs", times(samples, separate)),
            ("whole path, separate programs", samples.ratio(separate, 0)),
        ]
        .map(|(id, ratio)| {
            let id = format!("{id}, 10000 chains / 10, {hook}");
            Claim::at_most(id, ratio, BOUND)
        })
        .into()
    };
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    for (index, (count, loaded)) in doors.enumerate() {
        findings.add_row(
            Row::of("chains at a port")
                .with("hook", hook.to_string())
                .with("chains", count)
                .with("programs_loaded", loaded)
                .with_estimate(
                    "door",
                    "_ns",
                    samples.median_of(|round| alone(round, index)),
                )
                .with("times_10_chains", times(&samples, index).map(|e| e.value))
                .with_estimate("whole_path", "_ns", samples.median(index)),
        );
    }
    Ok(())
}

/// A front door and its chains. Fields drop in this order.
struct Door {
    chains: Vec<LoadedChain>,
    packets: TestPackets,
    program: Arc<OwnedFd>,
    _port: Port,
    _plane: Plane,
}

impl Door {
    fn new(hook: Hook, count: usize, loaded: usize, session: Session<'_>) -> Result<Self, Error> {
        let loaded = loaded.min(count) as u32;
        let plane = Plane::create(
            None,
            Capacity {
                lines: 8 * (loaded + 8),
                programs: loaded + 8,
                chains: loaded + 8,
                ..Capacity::default()
            },
        )?;
        let port = plane.add_port(test_run::port())?;
        let mut chains = Vec::new();
        for spi in 1..=loaded {
            session.check()?;
            chains.push(plane.load_chain(&test_run::chain(
                hook,
                spi,
                &[FunctionConfig::Forward],
            ))?);
        }
        for number in 0..count {
            port.insert(&shape(number).0, &chains[number % chains.len()])?;
        }
        let mut random = SplitMix(count as u64);
        let packets = (0..FRAMES).map(|_| {
            let (_, source, destination) = shape(random.draw_below(count as u64) as usize);
            frames::udp_frame(source.octets(), destination.octets(), 9000, 256)
        });
        Ok(Self {
            packets: TestPackets::new(packets),
            program: port.program(hook)?,
            chains,
            _port: port,
            _plane: plane,
        })
    }
}

/// The match of a chain in one of eight typical shapes, and the addresses of a matching packet. No
/// two shapes share an address.
fn shape(number: usize) -> (Match, Ipv4Addr, Ipv4Addr) {
    let k = (number / 8) as u32;
    let far = |first: u8, shift: u32| Ipv4Addr::from((u32::from(first) << 24) + (k << shift) + 1);
    let near = Ipv4Addr::new(10, 0, 0, 1);
    let (source, destination) = match number % 8 {
        shape @ 0..=3 => (near, far(20 + shape as u8, 8)),
        4 => (near, far(24, 12)),
        5 => (near, far(100, 16)),
        6 => (far(40, 8), Ipv4Addr::new(30, 0, 0, 1)),
        _ => (far(110, 16), Ipv4Addr::new(31, 1, 2, 1)),
    };
    let prefix = |address: Ipv4Addr, len| Prefix::new(address.into(), len).ok();
    let (from, to, protocol, port) = match number % 8 {
        // A service: address and port.
        0 => (None, prefix(destination, 32), Some(UDP), Some(9000)),
        // A host.
        1 => (None, prefix(destination, 32), None, None),
        // A service in a subnet; a subnet's UDP; subnets of three sizes.
        2 => (None, prefix(destination, 24), Some(UDP), Some(9000)),
        3 => (None, prefix(destination, 24), Some(UDP), None),
        4 => (None, prefix(destination, 20), None, None),
        5 => (None, prefix(destination, 16), None, None),
        // Clients of a subnet, to a subnet.
        6 => (prefix(source, 24), prefix(destination, 16), None, None),
        _ => (prefix(source, 16), prefix(destination, 24), None, None),
    };
    let matches = Match {
        source: from,
        destination: to,
        protocol,
        destination_port: port,
        ..Match::default()
    };
    (matches, source, destination)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_packet_matches_only_its_chain() {
        let shapes: Vec<_> = (0..10_000).map(shape).collect();
        let matches: HashSet<_> = shapes.iter().map(|(matches, ..)| *matches).collect();
        assert_eq!(matches.len(), shapes.len());
        for number in [0, 1, 2, 3, 4, 5, 6, 7, 4321, 9999] {
            let (_, source, destination) = shapes[number];
            let frame = frames::udp_frame(source.octets(), destination.octets(), 9000, 64);
            let tuple = myelin_packet::parse(&frame).unwrap().five_tuple(&frame);
            let matching: Vec<usize> = (0..10_000)
                .filter(|other| shapes[*other].0.matches(&tuple))
                .collect();
            assert_eq!(matching, [number]);
        }
    }
}
