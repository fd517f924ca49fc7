//! `migration`: a service at the edge follows its client to another base station, avoids a busy
//! server, and moves with its state.

mod controller;
mod lab;
mod traffic;

use std::thread;
use std::time::Duration;

use myelin_measure::clock::now_ns;
use myelin_metrics::stats::Deployments;

use self::controller::{Controller, State, Steps};
use self::lab::{Lab, SERVERS};
use self::traffic::{INTERVAL_NS, Trace};
use crate::figures::Column::{Hidden, Interval, Sum};
use crate::figures::{Figure, Subjects};
use crate::installed::find_packaged;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Why the service moves.
const TRIGGERS: [&str; 3] = ["station", "load", "station, with state"];
const STATION: usize = 0;
const LOAD: usize = 1;
const STATE: usize = 2;
/// The program that makes a server busy.
const BUSY: &str = "for _ in 1 2 3 4; do while :; do :; done & done; wait";
/// Longest interruption without a state, ms: a period of the servers' limit of processor time.
const INTERRUPTION_BOUND_MS: f64 = 100.0;
/// Longest interruption with a state, relative to the plain transfer of as many bytes.
const STATE_BOUND: f64 = 1.2;
/// With [`Fault::SlowExport`], the old service pauses this share of the plain transfer.
const SLOW_EXPORT: f64 = 0.8;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "migration",
    about: "a service in containers of a quarter core follows its client between two base stations, avoids a busy server, and moves with its state (ComNetsEmu, Fig. 5.3)",
    differs: "the paper publishes no figure of this network, and excludes the migration of a state; a chain steers here, not an OpenFlow controller",
    run,
    plots: include_str!("../../plots/migration.yaml"),
};

/// A migration as controller and client saw it.
#[derive(Debug, Clone, Copy)]
struct Migration {
    steps: Steps,
    /// Longest time between two answers, ms.
    interruption_ms: f64,
    unanswered: usize,
    /// Whether the service moved to an idle server of the client's station.
    is_right: bool,
}

const FIGURES: &[Figure<Migration>] = &[
    Figure::new("decided", Interval("_ms"), |one| {
        ms(one.steps.trigger, one.steps.decided)
    }),
    Figure::new("started", Interval("_ms"), |one| {
        ms(one.steps.decided, one.steps.started)
    }),
    Figure::new("steered", Interval("_ms"), |one| {
        ms(one.steps.decided, one.steps.steered)
    }),
    Figure::new("interruption", Interval("_ms"), |one| one.interruption_ms),
    Figure::new("unanswered", Sum, |one| one.unanswered as f64),
    Figure::new("right", Hidden, |one| f64::from(u8::from(one.is_right))),
];

/// A migration with a state.
#[derive(Debug, Clone, Copy)]
struct WithState {
    /// The plain transfer of as many bytes between two servers, ms.
    transfer_ms: f64,
    interruption_ms: f64,
    /// Datagrams that the service has not counted.
    uncounted: u64,
}

const STATE_FIGURES: &[Figure<WithState>] = &[
    Figure::new("transfer", Interval("_ms"), |one| one.transfer_ms),
    Figure::new("interruption", Interval("_ms"), |one| one.interruption_ms),
    Figure::new("ratio", Interval(""), |one| {
        one.interruption_ms / one.transfer_ms
    }),
    Figure::new("uncounted", Sum, |one| one.uncounted as f64),
];

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    for program in ["runc", "python3"] {
        if let Err(reason) = find_packaged(program, program) {
            findings.add_row(Findings::skipped_row("program", program, &reason));
            return Ok(());
        }
    }
    let bytes = session.effort.choose(1 << 20, 8 << 20, 8 << 20);
    findings.set("state_bytes", bytes);
    findings.set("interval_ms", INTERVAL_NS as f64 / 1e6);
    let subjects = Subjects::new(FIGURES, [TRIGGERS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        turns.progress()?;
        let lab = Lab::start(session)?;
        turns.progress()?;
        let (migrations, with_state) = migrate_three_times(session, &lab, bytes)?;
        subjects.record(turns, &migrations);
        turns.record(STATE_FIGURES.iter().map(|figure| (figure.of)(&with_state)));
        Ok(())
    };
    let claims = |samples: &Deployments, (): &()| claims_of(&subjects, samples);
    let (samples, ()) = session.sample(Sampling::of("migrations"), findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[trigger]| {
        Row::of("migrations").with("trigger", TRIGGERS[trigger])
    });
    findings.rows.extend(rows);
    let state = |place| samples.median(subjects.slots() + place);
    let row = Row::of("state")
        .with("state_mib", bytes >> 20)
        .with_estimate("transfer", "_ms", state(0))
        .with_estimate("interruption", "_ms", state(1))
        .with_estimate("ratio", "", state(2));
    findings.add_row(row);
    Ok(())
}

/// The client changes its station, its server becomes busy, the client returns.
fn migrate_three_times(
    session: Session<'_>,
    lab: &Lab,
    bytes: u64,
) -> Result<([Migration; 3], WithState), Error> {
    let mut controller = Controller::new(session, lab);
    controller.migrate(0, now_ns(), None)?;
    let traffic = lab.start_traffic()?;
    let pause = || thread::sleep(Duration::from_millis(200));
    pause();

    let trigger = now_ns();
    lab.move_client(1)?;
    let station = controller.migrate(1, trigger, None)?;
    pause();

    let busy = controller.server()?;
    let load = (SERVERS[busy], "load");
    lab.add_container(load, ["sh", "-c", BUSY].map(str::to_owned).into())?;
    let loaded = controller.migrate(1, now_ns(), None)?;
    lab.remove_container(load)?;
    pause();

    let at = controller.server()?;
    let transfer_ms = lab.transfer_ms([at, 0], bytes)?;
    pause();
    let trigger = now_ns();
    lab.move_client(0)?;
    let is_slow = session.has_fault(Fault::SlowExport);
    let pause_ms = if is_slow {
        SLOW_EXPORT * transfer_ms
    } else {
        0.0
    };
    let state = State {
        bytes,
        pause_ms: pause_ms as u64,
    };
    let with_state = controller.migrate(0, trigger, Some(state))?;
    pause();
    let trace = traffic.stop()?;

    let is_right = [
        station.server >= 2,
        loaded.server >= 2 && loaded.server != busy,
        with_state.server < 2,
    ];
    let migrations = [station, loaded, with_state];
    let migrations =
        std::array::from_fn(|place| observe(&trace, migrations[place], is_right[place]));
    Ok((migrations, state_of(&trace, &migrations, transfer_ms)))
}

fn observe(trace: &Trace, steps: Steps, is_right: bool) -> Migration {
    let window = (steps.trigger, steps.ended);
    Migration {
        steps,
        interruption_ms: trace.interruption_ms(window),
        unanswered: trace.unanswered(window),
        is_right,
    }
}

/// The last service starts from the count of its predecessor, which began with the load's decision.
fn state_of(trace: &Trace, migrations: &[Migration; 3], transfer_ms: f64) -> WithState {
    let after = migrations[LOAD].steps.ended;
    let sent = trace.sent_ns.iter().filter(|sent| **sent >= after).count() as u64;
    WithState {
        transfer_ms,
        interruption_ms: migrations[STATE].interruption_ms,
        uncounted: sent.saturating_sub(trace.counted),
    }
}

fn claims_of(subjects: &Subjects<Migration, 1>, samples: &Deployments) -> Vec<Claim> {
    let at = |trigger: usize| subjects.at(samples, [trigger]);
    let mean = |trigger: usize, figure: &str| samples.mean(at(trigger).slot(figure));
    let mut claims = Vec::new();
    for (trigger, name) in TRIGGERS.into_iter().enumerate() {
        claims.push(Claim::at_most(
            format!("{name}, datagrams without an answer"),
            mean(trigger, "unanswered"),
            0.0,
        ));
        claims.push(Claim::at_least(
            format!("{name}, share of moves to an idle server of the client's station"),
            mean(trigger, "right"),
            1.0,
        ));
    }
    claims.push(Claim::at_most(
        "station, interruption, ms",
        at(STATION).median("interruption"),
        INTERRUPTION_BOUND_MS,
    ));
    let state = |place| subjects.slots() + place;
    claims.push(Claim::at_most(
        "interruption with state / transfer of as many bytes",
        samples.median(state(2)),
        STATE_BOUND,
    ));
    claims.push(Claim::at_most(
        "with state, datagrams that the service has not counted",
        samples.mean(state(3)),
        0.0,
    ));
    claims
}

#[cfg(test)]
mod tests {
    use myelin_metrics::envelope::Verdict;

    use super::*;

    /// Eight deployments of such migrations.
    fn judge(migration: Migration, with_state: WithState) -> Vec<Claim> {
        let subjects = Subjects::new(FIGURES, [TRIGGERS.len()]);
        let mut samples = Deployments::default();
        for deployment in 0..8 {
            let mut slots = subjects.observed([migration; TRIGGERS.len()]);
            let mut state = with_state;
            state.interruption_ms *= 1.0 + 0.001 * f64::from(deployment);
            slots.extend(STATE_FIGURES.iter().map(|figure| vec![(figure.of)(&state)]));
            samples.push(slots);
        }
        claims_of(&subjects, &samples)
    }

    #[test]
    fn claims_turn_false() {
        let migration = Migration {
            steps: Steps::default(),
            interruption_ms: 9.0,
            unanswered: 0,
            is_right: true,
        };
        let with_state = WithState {
            transfer_ms: 700.0,
            interruption_ms: 750.0,
            uncounted: 0,
        };
        for claim in judge(migration, with_state) {
            assert_eq!(claim.verdict(), Some(Verdict::Holds), "{claim:?}");
        }
        let bad = Migration {
            interruption_ms: 300.0,
            unanswered: 50,
            is_right: false,
            ..migration
        };
        let bad_state = WithState {
            interruption_ms: 1300.0,
            uncounted: 100,
            ..with_state
        };
        for claim in judge(bad, bad_state) {
            assert_eq!(claim.verdict(), Some(Verdict::False), "{claim:?}");
        }
    }

    #[test]
    fn a_lost_state_shows_as_datagrams_not_counted() {
        let steps = Steps {
            ended: 10,
            ..Steps::default()
        };
        let migrations = [Migration {
            steps,
            interruption_ms: 5.0,
            unanswered: 0,
            is_right: true,
        }; 3];
        let trace = Trace {
            sent_ns: (0..100).collect(),
            answered_ns: vec![Some(1); 100],
            counted: 30,
        };
        assert_eq!(state_of(&trace, &migrations, 1.0).uncounted, 60);
    }
}
