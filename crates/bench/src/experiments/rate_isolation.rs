//! `rate-isolation`: two routers on one core, one of them flooded, without and with policing (Rathore et al. 2022, Table 1).

use std::time::Duration;

use myelin_metrics::stats::{Estimate, median_ci, paired_ratio};

use crate::generator::Sent;
use crate::published::rate_control;
use crate::rounds::{Rounds, to_one};
use crate::routers::{Figures, Kind, Routers};
use crate::{Claim, Error, Findings, Row, Session};

/// What the flooded router is sent, in profiles.
const FLOOD: f64 = 10.0;
/// Packets of the well-behaved router's burst: the size of a link's ring, since a worker may find the ring full and make one
/// cluster of it.
const BURST: u64 = 256;
/// Of the flooded one's: so few that what it may send at once at the start of a turn does not reach the 99th percentile.
const FLOODED_BURST: u64 = 32;
/// Packets that the well-behaved sender sends at once.
const CLUSTER: u64 = 16;
/// Share of the capacity that both profiles take together at most.
const BOOKED: f64 = 0.5;
/// What the generator keeps free.
const SPARE: f64 = 0.35;
/// How long a case is measured in a round.
const TURN: Duration = Duration::from_millis(50);
/// How long the capacity is looked for.
const SEARCH: Duration = Duration::from_millis(300);
/// Least share of its rate that the well-behaved router keeps.
const KEPT_BOUND: f64 = 0.999;
/// Most that its p99 may be of what it is alone.
const SOJOURN_BOUND: f64 = 1.2;

/// The routers that are compared, and what is behind each: it makes it slow enough to be flooded by one core.
const SUBJECTS: [(Kind, &[&str]); 4] = [
    (Kind::Kernel, &["kind: xor, config: { key: 90 }"; 24]),
    (Kind::Namespace, &["kind: monitor"]),
    (Kind::NamespaceXdp, &["kind: monitor"]),
    (
        Kind::Worker,
        &["kind: compress, config: { algorithm: zstd }"],
    ),
];

/// What is sent to the flooded router and to the other one, in profiles; whether the chains are policed.
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
    for (kind, work) in SUBJECTS {
        measure(kind, work, session, &mut findings)?;
    }
    Ok(findings)
}

/// One case in one round.
#[derive(Default)]
struct Turn {
    sent: Vec<Sent>,
    did: Vec<Figures>,
}

impl Turn {
    /// Share of what was sent to the well-behaved router that came to its door: what its link's ring had no room for did not.
    fn came(&self) -> f64 {
        self.did[1].came() as f64 / self.sent[1].packets.max(1) as f64
    }

    /// Share of the packets at its front door that left it.
    fn passed(&self) -> f64 {
        self.did[1].packets_out as f64 / self.did[1].came().max(1) as f64
    }
}

fn measure(
    kind: Kind,
    work: &[&str],
    session: Session<'_>,
    findings: &mut Findings,
) -> Result<(), Error> {
    session.progress(&format!("capacity of the {} router", kind.name()), 0, 1)?;
    let free = routers(session, kind, work, |_| "enforce: none".to_owned())?;
    let (offered_pps, capacity_pps) = capacity(&free)?;
    let rate_pps = (capacity_pps * BOOKED / 2.0)
        .min(offered_pps * (1.0 - SPARE) / (FLOOD + 1.0))
        .floor()
        .max(1.0);
    let policed = routers(session, kind, work, |burst| {
        format!("rate: {rate_pps}pps, burst: {burst}, enforce: policer")
    })?;
    let mut turns: Vec<Vec<Turn>> = CASES.iter().map(|_| Vec::new()).collect();
    let stage = format!("two {} routers", kind.name());
    // The figure is the share that the other router keeps of what it was sent; the rest is kept beside.
    let kept = session.measure(&stage, CASES.len(), (40, 200), |case| {
        let (_, sent, is_policed) = CASES[case];
        let place = if is_policed { &policed } else { &free };
        let rates_pps = sent.map(|share| share * rate_pps);
        let turn = turn(place, rates_pps, TURN)?;
        let kept = turn.did[1].packets_out as f64 / turn.sent[1].packets.max(1) as f64;
        turns[case].push(turn);
        // A share of nothing at all would be no figure.
        Ok(kept.max(1e-6))
    })?;
    for (number, (case, ..)) in CASES.into_iter().enumerate() {
        let row = Row::of("two routers")
            .with("routers", kind.name())
            .with("case", case)
            .with("capacity_kpps", capacity_pps / 1e3)
            .with("profile_kpps", rate_pps / 1e3);
        findings.row(with_figures(row, &turns[number], &kept, number));
    }
    let name = kind.name();
    let unpoliced = to_one(&kept.sorted(UNPOLICED))?;
    findings.claim(rate_control::KEPT_UNPOLICED.beside(Claim::ratio_at_most(
        format!("{name}: kept beside a flooded neighbour, not policed"),
        unpoliced,
        KEPT_BOUND,
    )));
    // What the chain is owed begins at its door; what its link's ring has no room for, since the receive work is kept from its core, is told apart.
    let of = |figure: fn(&Turn) -> f64| -> Result<Estimate, Error> {
        // A share of nothing at all would be no figure.
        let shares = turns[POLICED].iter().map(|turn| figure(turn).max(1e-6));
        to_one(&shares.collect::<Vec<_>>())
    };
    findings.claim(rate_control::KEPT_POLICED.beside(Claim::ratio_at_least(
        format!("{name}: kept beside a flooded neighbour, policed, of what came to the door"),
        of(Turn::passed)?,
        KEPT_BOUND,
    )));
    findings.at_least(
        format!("{name}: came to the door beside a flooded neighbour, policed, of what was sent"),
        of(Turn::came)?,
        KEPT_BOUND,
    );
    let ratio = paired_ratio(&p99_us(&turns[POLICED]), &p99_us(&turns[ALONE]))?;
    findings.at_most(
        format!("{name}: sojourn p99 beside a policed flood / alone"),
        ratio,
        SOJOURN_BOUND,
    );
    Ok(())
}

/// The row of a case with what its turns showed.
fn with_figures(row: Row, turns: &[Turn], kept: &Rounds, case: usize) -> Row {
    let each = |figure: &dyn Fn(&Turn) -> f64| {
        let figures: Vec<f64> = turns.iter().map(figure).collect();
        median_ci(&figures, 0.95)
    };
    let kpps = |packets: u64| packets as f64 / TURN.as_secs_f64() / 1e3;
    let value = |figure: &dyn Fn(&Turn) -> f64| each(figure).map(|e| e.value);
    row.with(
        "neighbour_sent_kpps",
        value(&|turn| kpps(turn.sent[0].packets)),
    )
    .with("sent_kpps", value(&|turn| kpps(turn.sent[1].packets)))
    .with(
        "neighbour_out_kpps",
        value(&|turn| kpps(turn.did[0].packets_out)),
    )
    .with("out_kpps", value(&|turn| kpps(turn.did[1].packets_out)))
    .with(
        "neighbour_policed_kpps",
        value(&|turn| kpps(turn.did[0].policed)),
    )
    .with_estimate("sender_short", "", each(&|turn| turn.sent[1].short()))
    .with_estimate("came", "", each(&Turn::came))
    .with_estimate("passed", "", each(&Turn::passed))
    .with_estimate("kept", "", kept.median(case))
    .with("lowest_kept", kept.sorted(case).first().copied())
    .with(
        "sojourn_p50_us",
        value(&|turn| turn.did[1].sojourn.quantile(0.5).unwrap_or(0) as f64 / 1e3),
    )
    .with_estimate("sojourn_p99", "_us", median_ci(&p99_us(turns), 0.95))
}

fn p99_us(turns: &[Turn]) -> Vec<f64> {
    let of = |turn: &Turn| turn.did[1].sojourn.quantile(0.99);
    turns
        .iter()
        .map(|turn| of(turn).unwrap_or(u64::MAX) as f64 / 1e3)
        .collect()
}

/// The two routers, each with an SLA of its burst.
fn routers(
    session: Session<'_>,
    kind: Kind,
    work: &[&str],
    sla: impl Fn(u64) -> String,
) -> Result<Routers, Error> {
    let slas = [FLOODED_BURST, BURST].map(sla);
    Routers::new(session.program, kind, work, &slas)
}

/// What one router is sent, and puts through, when it is sent as much as goes, packets a second.
fn capacity(routers: &Routers) -> Result<(f64, f64), Error> {
    let turn = turn(routers, [1e9, 0.0], SEARCH)?;
    let a_second = |packets: u64| packets as f64 / SEARCH.as_secs_f64();
    Ok((
        a_second(turn.sent[0].packets),
        a_second(turn.did[0].packets_out),
    ))
}

fn turn(routers: &Routers, rates_pps: [f64; 2], duration: Duration) -> Result<Turn, Error> {
    let streams = [
        (rates_pps[0], 1, u64::MAX),
        (rates_pps[1], CLUSTER as usize, CLUSTER),
    ];
    let (sent, did) = routers.turn(&streams, duration)?;
    Ok(Turn { sent, did })
}
