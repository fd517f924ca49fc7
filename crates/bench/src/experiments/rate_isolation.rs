//! `rate-isolation`: two routers on one core, one of them flooded, without and with policing
//! (Rathore et al. 2022, Table 1).

use std::time::Duration;

use myelin_metrics::stats::{Estimate, median_ci, paired_ratio};

use crate::generator::StreamCounts;
use crate::published::rate_control;
use crate::rounds::{Rounds, ratio_to_one};
use crate::routers::{RouterCounters, RouterKind, Routers};
use crate::{Claim, Error, Findings, Row, Session};

/// Load of the flooded router, in profiles.
const FLOOD: f64 = 10.0;
/// Burst of the conforming router, packets: the size of a link's ring, because a worker may forward
/// a full ring as one cluster.
const BURST: u64 = 256;
/// Burst of the flooded router, packets. It is so small that its first packets do not affect the
/// 99th percentile.
const FLOODED_BURST: u64 = 32;
/// Cluster of the conforming sender, packets.
const CLUSTER: u64 = 16;
/// Largest share of the capacity of both profiles together.
const BOOKED_SHARE: f64 = 0.5;
/// Share of the offered rate that the generator keeps free.
const SPARE_SHARE: f64 = 0.35;
/// Duration of a case in a round.
const TURN_TIME: Duration = Duration::from_millis(50);
/// Duration of the search for the capacity.
const SEARCH_TIME: Duration = Duration::from_millis(300);
/// Least share of its packets that the conforming router forwards.
const KEPT_BOUND: f64 = 0.999;
/// Largest p99 of its sojourn over that without a flood.
const SOJOURN_BOUND: f64 = 1.2;

/// The compared routers, and the functions behind each, which make it slow enough that one core can
/// flood it.
const SUBJECTS: [(RouterKind, &[&str]); 4] = [
    (RouterKind::Kernel, &["kind: xor, config: { key: 90 }"; 24]),
    (RouterKind::Namespace, &["kind: monitor"]),
    (RouterKind::NamespaceXdp, &["kind: monitor"]),
    (
        RouterKind::Worker,
        &["kind: compress, config: { algorithm: zstd }"],
    ),
];

/// Load of the flooded router and of the other one, in profiles, and whether the chains are
/// policed.
const CASES: [(&str, [f64; 2], bool); 4] = [
    ("alone", [0.0, 1.0], true),
    ("both keep to their profiles", [1.0, 1.0], true),
    ("neighbour floods, not policed", [FLOOD, 1.0], false),
    ("neighbour floods, policed", [FLOOD, 1.0], true),
];
const ALONE: usize = 0;
const UNPOLICED: usize = 2;
const POLICED: usize = 3;

pub(super) fn run(session: Session<'_>) -> Result<Findings, Error> {
    let mut findings =
        Findings::default().with("frame_bytes", crate::routers::FRAME_BYTES.to_string());
    for (kind, functions) in SUBJECTS {
        measure(kind, functions, session, &mut findings)?;
    }
    Ok(findings)
}

/// One case in one round.
#[derive(Default)]
struct Turn {
    sent: Vec<StreamCounts>,
    counters: Vec<RouterCounters>,
}

impl Turn {
    /// Share of the packets to the conforming router that reach its front door. The link's ring
    /// drops the others.
    fn arrived_share(&self) -> f64 {
        self.counters[1].arrived() as f64 / self.sent[1].packets.max(1) as f64
    }

    /// Share of the packets at its front door that it forwards.
    fn passed_share(&self) -> f64 {
        self.counters[1].packets_out as f64 / self.counters[1].arrived().max(1) as f64
    }
}

fn measure(
    kind: RouterKind,
    functions: &[&str],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    session.progress(&format!("capacity of the {} router", kind.name()), 0, 1)?;
    let free = deploy_routers(session, kind, functions, |_| "enforce: none".to_owned())?;
    let (offered_pps, capacity_pps) = measure_capacity(&free)?;
    let rate_pps = (capacity_pps * BOOKED_SHARE / 2.0)
        .min(offered_pps * (1.0 - SPARE_SHARE) / (FLOOD + 1.0))
        .floor()
        .max(1.0);
    let policed = deploy_routers(session, kind, functions, |burst| {
        format!("rate: {rate_pps}pps, burst: {burst}, enforce: policer")
    })?;
    let mut turns: Vec<Vec<Turn>> = CASES.iter().map(|_| Vec::new()).collect();
    let stage = format!("two {} routers", kind.name());
    // The figure is the share of its packets that the other router forwards.
    let kept = session.measure(&stage, CASES.len(), (40, 200), |case| {
        let (_, sent, is_policed) = CASES[case];
        let routers = if is_policed { &policed } else { &free };
        let rates_pps = sent.map(|share| share * rate_pps);
        let turn = measure_turn(routers, rates_pps, TURN_TIME)?;
        let kept = turn.counters[1].packets_out as f64 / turn.sent[1].packets.max(1) as f64;
        turns[case].push(turn);
        // A ratio needs a positive figure.
        Ok(kept.max(1e-6))
    })?;
    for (number, (case, ..)) in CASES.into_iter().enumerate() {
        let row = Row::of("two routers")
            .with("routers", kind.name())
            .with("case", case)
            .with("capacity_kpps", capacity_pps / 1e3)
            .with("profile_kpps", rate_pps / 1e3);
        findings.add_row(with_figures(row, &turns[number], &kept, number));
    }
    let name = kind.name();
    let unpoliced = ratio_to_one(&kept.sorted(UNPOLICED))?;
    findings.add_claim(rate_control::KEPT_UNPOLICED.add_to(Claim::ratio_at_most(
        format!("{name}: kept beside a flooded neighbour, not policed"),
        unpoliced,
        KEPT_BOUND,
    )));
    // The contract begins at the front door. Losses in the link's ring, because the receive work
    // gets too little time, are a separate claim.
    let of = |figure: fn(&Turn) -> f64| -> Result<Estimate, Error> {
        // A ratio needs a positive figure.
        let shares = turns[POLICED].iter().map(|turn| figure(turn).max(1e-6));
        ratio_to_one(&shares.collect::<Vec<_>>())
    };
    findings.add_claim(rate_control::KEPT_POLICED.add_to(Claim::ratio_at_least(
        format!("{name}: kept beside a flooded neighbour, policed, of packets at the front door"),
        of(Turn::passed_share)?,
        KEPT_BOUND,
    )));
    findings.claim_at_least(
        format!(
            "{name}: packets at the front door beside a flooded neighbour, policed, of those sent"
        ),
        of(Turn::arrived_share)?,
        KEPT_BOUND,
    );
    let ratio = paired_ratio(&p99_us(&turns[POLICED]), &p99_us(&turns[ALONE]))?;
    findings.claim_at_most(
        format!("{name}: sojourn p99 beside a policed flood / alone"),
        ratio,
        SOJOURN_BOUND,
    );
    Ok(())
}

/// Adds the figures of a case's turns to its row.
fn with_figures(row: Row, turns: &[Turn], kept: &Rounds, case: usize) -> Row {
    let each = |figure: &dyn Fn(&Turn) -> f64| {
        let figures: Vec<f64> = turns.iter().map(figure).collect();
        median_ci(&figures, 0.95)
    };
    let kpps = |packets: u64| packets as f64 / TURN_TIME.as_secs_f64() / 1e3;
    let value = |figure: &dyn Fn(&Turn) -> f64| each(figure).map(|e| e.value);
    row.with(
        "neighbour_sent_kpps",
        value(&|turn| kpps(turn.sent[0].packets)),
    )
    .with("sent_kpps", value(&|turn| kpps(turn.sent[1].packets)))
    .with(
        "neighbour_out_kpps",
        value(&|turn| kpps(turn.counters[0].packets_out)),
    )
    .with(
        "out_kpps",
        value(&|turn| kpps(turn.counters[1].packets_out)),
    )
    .with(
        "neighbour_policed_kpps",
        value(&|turn| kpps(turn.counters[0].policed)),
    )
    .with_estimate(
        "sender_short",
        "",
        each(&|turn| turn.sent[1].skipped_share()),
    )
    .with_estimate("arrived", "", each(&Turn::arrived_share))
    .with_estimate("passed", "", each(&Turn::passed_share))
    .with_estimate("kept", "", kept.median(case))
    .with("lowest_kept", kept.sorted(case).first().copied())
    .with(
        "sojourn_p50_us",
        value(&|turn| turn.counters[1].sojourn.quantile(0.5).unwrap_or(0) as f64 / 1e3),
    )
    .with_estimate("sojourn_p99", "_us", median_ci(&p99_us(turns), 0.95))
}

fn p99_us(turns: &[Turn]) -> Vec<f64> {
    let of = |turn: &Turn| turn.counters[1].sojourn.quantile(0.99);
    turns
        .iter()
        .map(|turn| of(turn).unwrap_or(u64::MAX) as f64 / 1e3)
        .collect()
}

/// Deploys the two routers. `sla` makes the SLA for a burst.
fn deploy_routers(
    session: Session<'_>,
    kind: RouterKind,
    functions: &[&str],
    sla: impl Fn(u64) -> String,
) -> Result<Routers, Error> {
    let slas = [FLOODED_BURST, BURST].map(sla);
    Routers::new(session.program, kind, functions, &slas)
}

/// Offered and forwarded rate of one router at the sender's highest rate, packets a second.
fn measure_capacity(routers: &Routers) -> Result<(f64, f64), Error> {
    let turn = measure_turn(routers, [1e9, 0.0], SEARCH_TIME)?;
    let per_second = |packets: u64| packets as f64 / SEARCH_TIME.as_secs_f64();
    Ok((
        per_second(turn.sent[0].packets),
        per_second(turn.counters[0].packets_out),
    ))
}

fn measure_turn(routers: &Routers, rates_pps: [f64; 2], duration: Duration) -> Result<Turn, Error> {
    let streams = [
        (rates_pps[0], 1, u64::MAX),
        (rates_pps[1], CLUSTER as usize, CLUSTER),
    ];
    let (sent, counters) = routers.send_and_count(&streams, duration)?;
    Ok(Turn { sent, counters })
}
