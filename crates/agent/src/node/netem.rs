//! Links whose delay, rate and loss the kernel's netem emulates: a queueing discipline at each end,
//! for the packets that the end sends. They go with their interfaces.

use myelin_emulator::Network;
use myelin_linux::feature::{Feature, ProbeResult, probe};
use myelin_linux::netem::{self, Netem};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_spec::{Impairments, LinkEmulation, Topology};

use crate::node::delay_line::packets_of;

/// Refuses a topology with links for netem if the kernel lacks it. The test sets such a discipline.
///
/// # Errors
/// The kernel lacks netem, or the test could not run.
pub(crate) fn check(topology: &Topology) -> Result<(), String> {
    let mut links = topology.links.iter();
    let Some(link) = links.find(|link| link.by == LinkEmulation::Netem) else {
        return Ok(());
    };
    let name = &link.name;
    match probe(Feature::Netem) {
        ProbeResult::Yes => Ok(()),
        ProbeResult::NotSupported => Err(format!(
            "link `{name}`: `by: netem`, but this kernel has no netem: load its module with `modprobe sch_netem`, or \
             remove the key, and Myelin's delay line emulates the link"
        )),
        ProbeResult::Error(error) => Err(format!(
            "link `{name}`: `by: netem`, but a test of the kernel's netem failed: {error}"
        )),
    }
}

/// Sets the disciplines of the links for netem from this position of the topology on.
///
/// # Errors
/// The kernel refuses a discipline. The error names the link.
pub(crate) fn impair_from(first: usize, network: &Network) -> Result<(), String> {
    let links = network.topology().links.iter().enumerate();
    for (position, link) in links.skip(first) {
        if link.by == LinkEmulation::Netem {
            let set = impair(network, position, &link.directions());
            set.map_err(|error| format!("link `{}`: {error}", link.name))?;
        }
    }
    Ok(())
}

/// Sets or changes the disciplines at both ends of the link at this position of the topology: each
/// is for the packets that its end sends.
///
/// # Errors
/// The kernel refuses a discipline.
pub(crate) fn impair(
    network: &Network,
    position: usize,
    directions: &[Impairments; 2],
) -> Result<(), String> {
    let Some((_, ends, _)) = network.links().nth(position) else {
        return Ok(());
    };
    for (end, impairments) in ends.iter().zip(directions) {
        let netem = netem_of(impairments);
        let set = || {
            let mut netlink = match &end.netns {
                Some(netns) => Netlink::open_in(&Netns::open(netns)?)?,
                None => Netlink::open()?,
            };
            let link = netlink.link(&end.interface)?.id();
            netlink.apply([netem::set(&link, &netem)])
        };
        set().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// netem has one limit for the packets that wait for the rate and for the delay.
fn netem_of(impairments: &Impairments) -> Netem {
    let of_direction = packets_of(impairments);
    let loss = impairments.loss;
    Netem {
        delay_ns: impairments.delay_ns,
        jitter_ns: impairments.jitter_ns,
        rate_bps: impairments.rate_bps,
        limit: u32::try_from(of_direction).unwrap_or(u32::MAX).max(1),
        loss_ppm: loss.map_or(0, |loss| loss.ppm),
        loss_burst: loss.map_or(1, |loss| loss.burst),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_has_room_for_delay_and_queue() {
        let link = Impairments {
            delay_ns: 10_000_000,
            rate_bps: Some(8 * 1514 * 1000),
            queue_packets: Some(20),
            loss: Some(myelin_spec::Loss { ppm: 5, burst: 3 }),
            ..Impairments::default()
        };
        // A packet a millisecond.
        let netem = netem_of(&link);
        assert_eq!((netem.limit, netem.delay_ns), (30, 10_000_000));
        assert_eq!((netem.loss_ppm, netem.loss_burst), (5, 3));
        let none = netem_of(&Impairments::default());
        assert_eq!((none.loss_burst, none.rate_bps), (1, None));
        assert!(none.limit >= 1000);
    }
}
