//! `emulator-scale`: time and memory of stars of emulated hosts, beside Mininet.

mod emulators;

use myelin_metrics::stats::Deployments;

use self::emulators::{Emulator, IMPORTS, Python, Star};
use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Bound of a ratio.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Figures of an emulator over those of another one, for the star of [`MIDDLE`].
const RATIOS: [(&str, [&str; 2], Bound); 6] = [
    ("up", ["mininet", "myelin"], Bound::AtLeast(8.0)),
    ("down", ["mininet", "myelin"], Bound::AtLeast(8.0)),
    ("memory_mib", ["mininet", "myelin"], Bound::AtLeast(1.0)),
    ("up", ["mininet", "python"], Bound::AtLeast(6.0)),
    ("up", ["python", "command line"], Bound::AtMost(1.3)),
    ("cmd", ["python", "mininet"], Bound::AtMost(0.5)),
];
/// Largest time of the greatest star over that of the middle one.
const SCALE_BOUND: f64 = 12.0;
/// Largest time of `import myelin` over that of the modules for a client of HTTP.
const IMPORT_BOUND: f64 = 2.0;
/// Time of a known-bad Python package, ms.
const SLOW_MS: f64 = 5000.0;

/// The middle and the greatest star.
const MIDDLE: usize = 1;
const GREATEST: usize = 2;

const FIGURES: &[Figure<Star>] = &[
    Figure::new("up", Interval("_ms"), |star| star.up_ms),
    Figure::new("down", Interval("_ms"), |star| star.down_ms),
    Figure::new("memory_mib", Median, |star| star.memory_mib),
    Figure::new("cmd", Interval("_ms"), |star| star.cmd_ms),
    Figure::new("program", Interval("_ms"), |star| star.program_ms),
];

const IMPORT: &[Figure<f64>] = &[Figure::new("import", Interval("_ms"), |time_ms| *time_ms)];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "emulator-scale",
    about: "time to make and remove a star of 10, 100 and 1000 emulated hosts, and the memory of the processes that keep it, by the agent, the command line, Python and Mininet",
    differs: "",
    run,
    plots: include_str!("../../plots/emulator-scale.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let hosts = session
        .effort
        .choose([4, 10, 60], [10, 100, 1000], [10, 100, 1000]);
    measure(session, findings, &hosts)?;
    let mut emulators = vec![Emulator::Agent, Emulator::CommandLine];
    match Python::find(session) {
        Ok(python) => {
            measure_imports(session, findings, &python)?;
            emulators.push(Emulator::Python(python));
        }
        Err(reason) => findings.add_row(Findings::skipped_row("emulator", "python", &reason)),
    }
    match Emulator::find_mininet() {
        Ok(mininet) => emulators.push(mininet),
        Err(reason) => findings.add_row(Findings::skipped_row("emulator", "mininet", &reason)),
    }
    measure_all(session, findings, (&emulators, &hosts[..=MIDDLE]))
}

fn subjects(emulators: usize, stars: usize) -> Subjects<Star, 2> {
    Subjects::new(FIGURES, [emulators, stars])
}

/// Measures the agent alone: how the time grows.
fn measure(session: Session<'_>, findings: &mut Findings, hosts: &[usize; 3]) -> Result<(), Error> {
    let emulator = Emulator::Agent;
    let subjects = subjects(1, hosts.len());
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[_, star]| {
            let mut made = emulator.make(session, hosts[star])?;
            if session.has_fault(Fault::QuadraticUp) {
                let ratio = hosts[star] as f64 / hosts[MIDDLE] as f64;
                made.up_ms += 100.0 * ratio * ratio;
            }
            Ok(made)
        })
    };
    let ratio = |samples: &Deployments| {
        let star = |star| subjects.at(samples, [0, star]);
        star(GREATEST).ratio(&star(MIDDLE), "up")
    };
    let id = format!("up, {} hosts / {} hosts", hosts[GREATEST], hosts[MIDDLE]);
    let claims = |samples: &Deployments, (): &()| {
        vec![Claim::at_most(id.clone(), ratio(samples), SCALE_BOUND)]
    };
    let sampling = Sampling::of("stars").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[_, star]| row("stars", &emulator, hosts[star]));
    findings.rows.extend(rows);
    Ok(())
}

/// Measures all emulators in turns.
fn measure_all(
    session: Session<'_>,
    findings: &mut Findings,
    (emulators, hosts): (&[Emulator], &[usize]),
) -> Result<(), Error> {
    let subjects = subjects(emulators.len(), hosts.len());
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[emulator, star]| {
            let emulator = &emulators[emulator];
            let made = emulator.make(session, hosts[star])?;
            Ok(with_fault(session, emulator, made))
        })
    };
    let of_hosts = hosts[MIDDLE];
    let claims = |samples: &Deployments, (): &()| {
        let place = |name: &str| emulators.iter().position(|one| one.name() == name);
        let of = |place| subjects.at(samples, [place, MIDDLE]);
        let ratios = RATIOS
            .into_iter()
            .filter_map(|(figure, [first, second], bound)| {
                // Without Mininet or Python there are no claims about it.
                let ratio = of(place(first)?).ratio(&of(place(second)?), figure);
                let figure = figure.trim_end_matches("_mib");
                let id = format!("{figure}, {of_hosts} hosts, {first} / {second}");
                Some(match bound {
                    Bound::AtLeast(bound) => Claim::at_least(id, ratio, bound),
                    Bound::AtMost(bound) => Claim::at_most(id, ratio, bound),
                })
            });
        ratios.collect()
    };
    let sampling = Sampling::of("stars beside mininet").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[emulator, star]| {
        row("stars beside mininet", &emulators[emulator], hosts[star])
    });
    findings.rows.extend(rows);
    Ok(())
}

/// Measures how long the package takes to load, beside modules that its work needs anyway.
fn measure_imports(
    session: Session<'_>,
    findings: &mut Findings,
    python: &Python,
) -> Result<(), Error> {
    let subjects: Subjects<f64, 1> = Subjects::new(IMPORT, [IMPORTS.len()]);
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[index]| {
            let (name, statement) = IMPORTS[index];
            let time_ms = python.import(session, statement)?;
            let is_slow = name == "myelin" && session.has_fault(Fault::SlowPython);
            Ok(time_ms + if is_slow { SLOW_MS } else { 0.0 })
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let of = |index| subjects.at(samples, [index]);
        let id = format!("import, {} / {}", IMPORTS[0].0, IMPORTS[1].0);
        vec![Claim::at_most(
            id,
            of(0).ratio(&of(1), "import"),
            IMPORT_BOUND,
        )]
    };
    let sampling = Sampling::of("imports").share(0.2);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[index]| {
        Row::of("imports").with("modules", IMPORTS[index].0)
    });
    findings.rows.extend(rows);
    Ok(())
}

/// What a known-bad emulator measures instead.
fn with_fault(session: Session<'_>, emulator: &Emulator, star: Star) -> Star {
    match emulator {
        Emulator::Agent if session.has_fault(Fault::HeavyStar) => Star {
            up_ms: 10.0 * star.up_ms,
            down_ms: 10.0 * star.down_ms,
            memory_mib: 10.0 * star.memory_mib,
            ..star
        },
        Emulator::Python(_) if session.has_fault(Fault::SlowPython) => Star {
            up_ms: star.up_ms + SLOW_MS,
            cmd_ms: star.cmd_ms + SLOW_MS,
            ..star
        },
        _ => star,
    }
}

fn row(table: &str, emulator: &Emulator, hosts: usize) -> Row {
    Row::of(table)
        .with("emulator", emulator.name())
        .with("hosts", hosts)
}
