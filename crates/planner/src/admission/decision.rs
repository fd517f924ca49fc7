//! The admission decision.

use myelin_spec::units::DURATION;

use super::booking::Booking;
use super::evaluate::{Evaluator, Unbounded};
use super::flow::Work;
use super::group::Group;
use super::ledger::Ledger;
use super::path::Resource;
use super::site::{NS, Platform};
use super::worst_case::WorstCase;
use crate::calculus::SECOND;
use crate::plan::{Bound, HopShare, ServerShare};

/// The result of admission for one chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The chain's worst case together with all admitted chains.
    pub bound: Option<Bound>,
    /// The reason why the chain has no bound.
    pub no_bound: Option<String>,
    /// The reason why admission refuses the chain.
    pub refusal: Option<String>,
    /// Lateness of the chain's shaper in the worker, fs; `None` without a bound.
    pub(super) late_fs: Option<u128>,
    /// Longest time from the policer to the shaper, fs.
    pub(super) to_shaper_fs: Option<u128>,
}

/// Decides whether a new chain fits, and does not change the ledger. The new chain replaces a chain
/// with the same name.
///
/// Refuses the chain if the node cannot keep the promise to this chain or to another chain. Checks
/// the tightest promise of the chain's own group, and of each group whose delay the chain changes.
pub fn admit(ledger: &Ledger, booking: &Booking, platform: &Platform) -> Decision {
    if ledger.get(&booking.chain).is_some() {
        let mut without = ledger.clone();
        without.remove(&booking.chain);
        return admit(&without, booking, platform);
    }
    let evaluator = Evaluator::new(ledger, platform, Some(booking));
    let mut decision = check_own_promise(booking, &evaluator);
    if decision.refusal.is_none() {
        decision.refusal = find_broken_promise(booking, ledger, platform, &evaluator);
    }
    decision
}

/// Compares the chain's worst case with its own promise.
fn check_own_promise(booking: &Booking, evaluator: &Evaluator<'_>) -> Decision {
    let no_bound = |why: String| Decision {
        no_bound: Some(why),
        ..Decision::default()
    };
    if let Some(why) = &booking.unbounded {
        return no_bound(why.clone());
    }
    if booking.profile.is_unlimited() {
        return no_bound(
            "no rate is agreed, so the chain is best effort and must not share a core with a promised chain; \
             write `sla: { rate: ... }`"
                .to_owned(),
        );
    }
    if !booking.policed {
        return no_bound(
            "no policer limits the chain at its ingress; remove `enforce`, or write `enforce: policer`".to_owned(),
        );
    }
    let worst = evaluator
        .new_group()
        .map(|group| evaluator.worst_case(group));
    let worst = worst.unwrap_or(Err(Unbounded::UnknownPath));
    let held_fs = booking.held_fs.ok_or(Unbounded::ShaperWait);
    match worst.and_then(|worst| Ok((worst, held_fs?))) {
        Ok((worst, held_fs)) => {
            let bound = divide_bound(booking, held_fs, &worst);
            let refusal = booking
                .latency_ns
                .filter(|latency_ns| bound.bound_ns > *latency_ns)
                .map(|latency_ns| {
                    let sharers = evaluator.chains_in_turns(booking);
                    let beside = if sharers.is_empty() {
                        String::new()
                    } else {
                        format!(" beside {} on the same core", quote(&sharers))
                    };
                    format!(
                        "the worst-case bound of {}{beside} is above the agreed latency of {}",
                        time(bound.bound_ns),
                        DURATION.format(latency_ns)
                    )
                });
            Decision {
                bound: Some(bound),
                no_bound: None,
                refusal,
                late_fs: Some(worst.late_fs),
                to_shaper_fs: worst.to_shaper_fs,
            }
        }
        Err(why) => {
            let is_promised = booking.latency_ns.is_some() || matches!(why, Unbounded::Overload(_));
            let why = explain(&why, booking);
            Decision {
                refusal: is_promised.then(|| format!("there is no worst-case bound: {why}")),
                no_bound: Some(why),
                ..Decision::default()
            }
        }
    }
}

/// Finds a promise to another chain that would break, and explains why. Checks the paths whose
/// delay changes, in the order of paths.
fn find_broken_promise(
    booking: &Booking,
    ledger: &Ledger,
    platform: &Platform,
    evaluator: &Evaluator<'_>,
) -> Option<String> {
    let affected = evaluator.affected_groups().unwrap_or_default();
    let promised = affected
        .into_iter()
        .filter_map(|group| ledger.group(group).map(|chains| (group, chains)));
    // The quick bound suffices for nearly all groups.
    let is_kept = |number: usize, group: &Group| {
        let Some((promise_fs, _)) = group.tightest_promise(0) else {
            return true;
        };
        let quick = evaluator.quick_bound_fs(number);
        quick.is_ok_and(|(quick_bound_fs, to_shaper_fs)| {
            let room = group.least_room(0);
            quick_bound_fs <= promise_fs && room.is_none_or(|(room_fs, _)| to_shaper_fs <= room_fs)
        })
    };
    let mut doubtful: Vec<_> = promised
        .filter(|(number, group)| !is_kept(*number, group))
        .collect();
    doubtful.sort_unstable_by_key(|(_, group)| &group.route);
    let before = Evaluator::new(ledger, platform, None);
    doubtful
        .into_iter()
        .find_map(|(number, group)| check_promises(number, group, booking, (evaluator, &before)))
}

/// Checks the promises of one path, and explains why a promise would break. Ignores a promise that
/// an earlier best-effort chain broke.
fn check_promises(
    number: usize,
    group: &Group,
    booking: &Booking,
    (evaluator, before): (&Evaluator<'_>, &Evaluator<'_>),
) -> Option<String> {
    let was = before.worst_case(number).ok()?;
    let worst = evaluator.worst_case(number);
    let late = group
        .tightest_promise(was.bound_fs())
        .filter(|(promise_fs, _)| {
            worst
                .as_ref()
                .map_or(true, |worst| worst.bound_fs() > *promise_fs)
        });
    if let Some((promise_fs, chain)) = late {
        let after = match &worst {
            Ok(worst) => format!(
                "its worst-case bound would be {}",
                time(ns_up(worst.bound_fs()))
            ),
            Err(why) => format!(
                "it would have no worst-case bound: {}",
                explain(why, booking)
            ),
        };
        return Some(format!(
            "the promise to chain `{chain}` would break: {after}, and the promise is {}",
            time((promise_fs / NS) as u64)
        ));
    }
    let (before_fs, after_fs) = (was.to_shaper_fs?, worst.ok()?.to_shaper_fs?);
    let full = group.least_room(before_fs);
    let (room_fs, chain) = full.filter(|(room_fs, _)| after_fs > *room_fs)?;
    Some(format!(
        "the promise to chain `{chain}` would break: its packets would take up to {} to reach its shaper, \
         whose queue has room only for {} of traffic",
        time(ns_up(after_fs)),
        time((room_fs / NS) as u64)
    ))
}

fn explain(why: &Unbounded, booking: &Booking) -> String {
    match why {
        Unbounded::Overload(resource) => format!(
            "the agreed rates exceed the capacity of {resource}{}",
            describe_capacity(booking, resource)
        ),
        Unbounded::Unpoliced { chain, at } => {
            let which = if *chain == booking.chain {
                "the chain itself"
            } else {
                "another chain"
            };
            format!(
                "`{chain}` ({which}) shares {at}, and no rate limits it; give it a `rate`, another core \
                 (`worker: {{ cores: [N] }}`) or other interfaces"
            )
        }
        Unbounded::Overflow {
            at,
            port,
            packets,
            ring,
        } => format!(
            "up to {packets} packets from {port} may wait for {at}, but the ring between them holds {ring}; \
             reduce bursts, add a rate in packets to a rate in bits, or use another core"
        ),
        Unbounded::LateTurns { at, chains } => format!(
            "{at} takes turns by deadline with chains that are there ({}), and the packets of all, with a switch \
             for each and for each that waits in a shaper, need more than the core or are late by far; reduce \
             rates, agree on longer latencies, write `enforce: policer`, or use another core",
            quote(chains)
        ),
        Unbounded::UnorderedTurn { at, chains } => format!(
            "{at} takes turns by deadline with chains that are there ({}), and a worker there has several receive \
             queues or holds packets back, so the order of deadlines in its turn is unknown; `sharing: cooperative` \
             has a bound, or use another core",
            quote(chains)
        ),
        Unbounded::ShaperWait => {
            "the shaper may hold packets for any time, because rates in packets and in bits are \
             agreed and `policingBurst` is above `burst`; remove `policingBurst`, or one rate"
                .to_owned()
        }
        Unbounded::UnknownPath => "the ledger does not have the chain's path".to_owned(),
        Unbounded::BlackBox(resource) => format!(
            "a black box runs on the core of {resource}, and never hands the core over; write another core into `cores` \
             of the black box, or of `worker`"
        ),
        Unbounded::MixedTurns(resource) => format!(
            "chains of {resource} in mappings `compact` and `pipeline` share each of its turns, so the share of each is \
             unknown; write one `mapping` for all, or give one another `metadata.namespace`"
        ),
        Unbounded::NotComputable(resource) => format!(
            "packets return to {resource}, where another process polls; write `worker: {{ idle: sleep }}` \
             for all workers on that core, or use another core"
        ),
    }
}

/// Lists the names of chains.
fn quote(chains: &[String]) -> String {
    let chains: Vec<_> = chains.iter().map(|chain| format!("`{chain}`")).collect();
    chains.join(", ")
}

fn describe_capacity(booking: &Booking, resource: &Resource) -> String {
    let visit = booking
        .visits
        .iter()
        .find(|visit| visit.resource == *resource);
    visit.map_or_else(String::new, |visit| {
        let pps = SECOND / visit.max_packet_fs().max(1);
        format!(", which processes {pps} packets/s of this chain at worst")
    })
}

/// Creates the bound with its shares. Divides the work time among the hops in proportion to cost.
fn divide_bound(booking: &Booking, hold_fs: u128, worst: &WorstCase) -> Bound {
    let servers = || worst.servers.iter().zip(&booking.visits);
    let latencies_fs: u128 = worst.servers.iter().map(|served| served.latency_fs).sum();
    let held_fs = hold_fs.saturating_add(worst.late_fs);
    let bound_fs = worst.bound_fs().saturating_add(hold_fs);
    let working_fs = bound_fs.saturating_sub(held_fs.saturating_add(latencies_fs));
    let all_fs: u128 = worst
        .servers
        .iter()
        .map(|served| served.delay_fs - served.latency_fs)
        .sum();
    // Divides among servers in proportion to their delay, and within a server in proportion to
    // cost.
    let part = |whole_fs: u128, share: u128, total: u128| {
        (whole_fs / NS).saturating_mul(share) / total.max(1)
    };
    let hops = booking.hops.iter().map(|hop| {
        let served = &worst.servers[hop.visit];
        let here_fs = served.delay_fs.saturating_sub(served.latency_fs);
        let longest = booking.visits[hop.visit].growth.longest;
        let work_ns = |work: &Work| work.frame_fs(longest) / NS;
        // The rounds of a pipeline are latency.
        let own_ns = if hop.in_rounds { 0 } else { work_ns(&hop.work) };
        let of_server = part(here_fs, own_ns, work_ns(&booking.visits[hop.visit].work));
        HopShare {
            name: hop.name.clone(),
            cost_ns: ns_up(hop.work.frame_fs(longest)),
            share_ns: part(working_fs, of_server, all_fs / NS) as u64,
            paper_ns: worst.sum_fs().map(|_| of_server as u64),
        }
    });
    let mut hops: Vec<_> = hops.collect();
    let bound_ns = ns_up(bound_fs);
    let latency_ns = ns_up(latencies_fs.saturating_add(held_fs).min(bound_fs));
    // The hop with the largest share also gets the rounding error.
    let divided: u64 = hops.iter().map(|hop| hop.share_ns).sum();
    if let Some(largest) = hops.iter_mut().max_by_key(|hop| hop.share_ns) {
        let rest = i128::from(bound_ns) - i128::from(latency_ns) - i128::from(divided);
        largest.share_ns = u64::try_from(i128::from(largest.share_ns) + rest).unwrap_or(0);
    }
    Bound {
        bound_ns,
        paper_sum_ns: worst.sum_fs().map(|sum| ns_up(sum.saturating_add(hold_fs))),
        latency_ns,
        servers: servers()
            .map(|(served, visit)| ServerShare {
                name: visit.resource.to_string(),
                capacity_pps: (SECOND / visit.max_packet_fs().max(1)) as u64,
                reserved_ppm: crate::calculus::mul_div_up(
                    served.total.long().rate,
                    1_000_000,
                    served.rate,
                )
                .unwrap_or(u128::MAX) as u64,
                latency_ns: ns_up(served.latency_fs),
                delay_ns: ns_up(served.delay_fs),
            })
            .collect(),
        hops,
    }
}

/// Converts a time to nanoseconds, rounded up.
fn ns_up(fs: u128) -> u64 {
    u64::try_from(fs.div_ceil(NS)).unwrap_or(u64::MAX)
}

/// Formats a time in microseconds.
fn time(ns: u64) -> String {
    const US: f64 = 1e3;
    format!("{:.1} us", ns as f64 / US)
}
