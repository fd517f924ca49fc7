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
/// The kernel refuses a discipline. Both ends then have the impairments that the topology
/// describes, unless the kernel refuses these too.
pub(crate) fn impair(
    network: &Network,
    position: usize,
    directions: &[Impairments; 2],
) -> Result<(), String> {
    let described = network.topology().links.get(position);
    let link = network.links().nth(position).zip(described);
    let Some(((_, ends, _), described)) = link else {
        return Ok(());
    };
    let old = netem_of(&described.impairments);
    let new = directions.each_ref().map(netem_of);
    set_both(&ends, (&old, &new), |end, netem| {
        let set = || {
            let mut netlink = match &end.netns {
                Some(netns) => Netlink::open_in(&Netns::open(netns)?)?,
                None => Netlink::open()?,
            };
            let link = netlink.link(&end.interface)?.id();
            netlink.apply([netem::set(&link, netem)])
        };
        set().map_err(|error| error.to_string())
    })
}

/// Gives each end its new values. If the second end refuses them, gives the first end its old ones.
fn set_both<E>(
    ends: &[E; 2],
    (old, new): (&Netem, &[Netem; 2]),
    set: impl Fn(&E, &Netem) -> Result<(), String>,
) -> Result<(), String> {
    let [first, second] = ends;
    set(first, &new[0])?;
    set(second, &new[1]).map_err(|error| match set(first, old) {
        Ok(()) => error,
        Err(cause) => format!(
            "{error}; the other direction keeps the new values, because the kernel refuses the old ones: {cause}: repeat \
             the change"
        ),
    })
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

    #[test]
    fn both_ends_keep_the_old_values_when_the_second_end_refuses_the_new_ones() {
        let delay = |delay_ns| {
            netem_of(&Impairments {
                delay_ns,
                ..Impairments::default()
            })
        };
        let (old, new) = (delay(1), [delay(2), delay(3)]);
        let change = |refused: &[(&str, u64)]| {
            let ends = std::cell::RefCell::new(std::collections::BTreeMap::new());
            let set = |end: &&'static str, netem: &Netem| {
                if refused.contains(&(*end, netem.delay_ns)) {
                    return Err(format!("{end} refuses"));
                }
                ends.borrow_mut().insert(*end, netem.delay_ns);
                Ok(())
            };
            let changed = set_both(&["a", "b"], (&old, &new), set);
            (changed, ends.into_inner())
        };
        assert_eq!(change(&[]), (Ok(()), [("a", 2), ("b", 3)].into()));
        let (error, ends) = change(&[("b", 3)]);
        assert_eq!((error, ends), (Err("b refuses".into()), [("a", 1)].into()));
        let (error, ends) = change(&[("a", 2)]);
        assert_eq!((error, ends), (Err("a refuses".into()), [].into()));
        let (error, ends) = change(&[("b", 3), ("a", 1)]);
        let error = error.unwrap_err();
        assert!(
            error.contains("keeps the new values") && error.contains("a refuses"),
            "{error}"
        );
        assert_eq!(ends, [("a", 2)].into());
    }
}
