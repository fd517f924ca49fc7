//! `emulator-scale`: time and memory of stars of emulated hosts, beside Mininet.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_metrics::stats::Deployments;

use crate::agents::AgentProcess;
use crate::figures::Column::{Interval, Median};
use crate::figures::{Figure, Subjects};
use crate::installed::find_packaged;
use crate::machine::MemoryMib;
use crate::owned_child::{OwnedChild, read_all};
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Least time and memory of Mininet over that of Myelin, for the star of [`MIDDLE`].
const TIME_BOUND: f64 = 8.0;
const MEMORY_BOUND: f64 = 1.0;
/// Largest time of the greatest star over that of the middle one.
const SCALE_BOUND: f64 = 12.0;
/// Longest time of a star with Mininet.
const MININET_TIME: Duration = Duration::from_secs(120);
/// Pause after a star: the kernel removes namespaces in the background.
const PAUSE: Duration = Duration::from_millis(500);
const SCRIPT: &str = include_str!("../../reference/mininet-star.py");

/// The middle and the greatest star.
const MIDDLE: usize = 1;
const GREATEST: usize = 2;

/// A star that came up and went down.
#[derive(Debug, Clone, Copy)]
struct Star {
    up_ms: f64,
    down_ms: f64,
    /// Memory of the emulator's processes.
    memory_mib: f64,
}

const FIGURES: &[Figure<Star>] = &[
    Figure::new("up", Interval("_ms"), |star| star.up_ms),
    Figure::new("down", Interval("_ms"), |star| star.down_ms),
    Figure::new("memory_mib", Median, |star| star.memory_mib),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "emulator-scale",
    about: "time to make and remove a star of 10, 100 and 1000 emulated hosts, and the memory of the processes that keep it, beside Mininet",
    differs: "",
    run,
    plots: include_str!("../../plots/emulator-scale.yaml"),
};

/// An emulator and its stars: Myelin all of them, Mininet the first two.
#[derive(Debug, Clone)]
enum Emulator {
    Myelin,
    Mininet(Mininet),
}

/// The interpreter of Debian's Mininet.
#[derive(Debug, Clone)]
struct Mininet {
    interpreter: PathBuf,
}

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let hosts = session
        .effort
        .choose([4, 10, 60], [10, 100, 1000], [10, 100, 1000]);
    measure(session, findings, (&Emulator::Myelin, &hosts))?;
    let mininet = match Mininet::find() {
        Ok(mininet) => mininet,
        Err(reason) => {
            findings.add_row(Findings::skipped_row("emulator", "mininet", &reason));
            return Ok(());
        }
    };
    let mininet = Emulator::Mininet(mininet);
    measure_both(session, findings, (&mininet, &hosts[..=MIDDLE]))
}

fn subjects(emulators: usize, stars: usize) -> Subjects<Star, 2> {
    Subjects::new(FIGURES, [emulators, stars])
}

/// Measures Myelin alone: how the time grows.
fn measure(
    session: Session<'_>,
    findings: &mut Findings,
    (emulator, hosts): (&Emulator, &[usize; 3]),
) -> Result<(), Error> {
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
    let rows = subjects.rows(&samples, |[_, star]| row("stars", emulator, hosts[star]));
    findings.rows.extend(rows);
    Ok(())
}

/// Measures Myelin and Mininet in turns.
fn measure_both(
    session: Session<'_>,
    findings: &mut Findings,
    (mininet, hosts): (&Emulator, &[usize]),
) -> Result<(), Error> {
    let emulators = [Emulator::Myelin, mininet.clone()];
    let subjects = subjects(emulators.len(), hosts.len());
    let deploy = |turns: &mut Turns<'_>| {
        subjects.measure(turns, |[emulator, star]| {
            emulators[emulator].make(session, hosts[star])
        })
    };
    let of_hosts = hosts[MIDDLE];
    let claims = |samples: &Deployments, (): &()| {
        let ratio = |figure| {
            let of = |emulator| subjects.at(samples, [emulator, MIDDLE]);
            of(1).ratio(&of(0), figure)
        };
        [
            ("up", TIME_BOUND),
            ("down", TIME_BOUND),
            ("memory_mib", MEMORY_BOUND),
        ]
        .map(|(figure, bound)| {
            let name = figure.trim_end_matches("_mib");
            let id = format!("{name}, {of_hosts} hosts, mininet / myelin");
            Claim::at_least(id, ratio(figure), bound)
        })
        .into()
    };
    let sampling = Sampling::of("stars beside mininet").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |[emulator, star]| {
        row("stars beside mininet", &emulators[emulator], hosts[star])
    });
    findings.rows.extend(rows);
    Ok(())
}

fn row(table: &str, emulator: &Emulator, hosts: usize) -> Row {
    let name = match emulator {
        Emulator::Myelin => "myelin",
        Emulator::Mininet(_) => "mininet",
    };
    Row::of(table).with("emulator", name).with("hosts", hosts)
}

impl Emulator {
    /// Makes a star and removes it.
    fn make(&self, session: Session<'_>, hosts: usize) -> Result<Star, Error> {
        let star = match self {
            Self::Myelin => make_with_myelin(session, hosts),
            Self::Mininet(mininet) => mininet.make(session, hosts),
        };
        std::thread::sleep(PAUSE);
        star
    }
}

/// Makes a star with an agent that runs already.
fn make_with_myelin(session: Session<'_>, hosts: usize) -> Result<Star, Error> {
    let agent = AgentProcess::start(session.program)?;
    let name = agent.dir.chain_name("star");
    let text = star_text(&name, hosts);
    let start = Instant::now();
    agent.up(text)?;
    let up_ms = start.elapsed().as_secs_f64() * 1e3;
    let memory = MemoryMib::of(&[agent.client.info()?.pid])?;
    let start = Instant::now();
    agent.client.down(&name)?;
    Ok(Star {
        up_ms,
        down_ms: start.elapsed().as_secs_f64() * 1e3,
        memory_mib: memory.figures()[1],
    })
}

fn star_text(name: &str, hosts: usize) -> String {
    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
         switches: [ s1 ]\n"
    );
    // Writing to a string cannot fail.
    let _ = text.write_str("  hosts:\n");
    for host in 1..=hosts {
        let _ = writeln!(text, "    - h{host}");
    }
    let _ = text.write_str("  links:\n");
    for host in 1..=hosts {
        let _ = writeln!(text, "    - {{ ends: [ h{host}, s1 ] }}");
    }
    text
}

impl Mininet {
    /// Finds Mininet and the programs that it needs.
    fn find() -> Result<Self, Error> {
        let program = find_packaged("mn", "mininet")?;
        find_packaged("brctl", "bridge-utils")?;
        find_packaged("unshare", "util-linux")?;
        let text = std::fs::read_to_string(&program).unwrap_or_default();
        let first = text.lines().next().and_then(|line| line.strip_prefix("#!"));
        let interpreter = first.map(str::trim).filter(|path| !path.contains(' '));
        interpreter
            .map(|path| Self {
                interpreter: path.into(),
            })
            .ok_or_else(|| Error::Peer {
                peer: "mininet".to_owned(),
                reason: format!("{} names no interpreter", program.display()),
            })
    }

    /// Makes a star in a network namespace that ends with the process.
    fn make(&self, session: Session<'_>, hosts: usize) -> Result<Star, Error> {
        let mut command = Command::new("unshare");
        command.arg("--net").arg(&self.interpreter);
        command.args(["-c", SCRIPT, &hosts.to_string()]);
        let (mut child, output) = OwnedChild::start_printing(command)?;
        let start = Instant::now();
        let failed = |reason| Error::Peer {
            peer: "mininet".to_owned(),
            reason,
        };
        let ended = loop {
            if let Some(reason) = child.end_reason() {
                break reason;
            }
            session.check()?;
            if start.elapsed() > MININET_TIME {
                return Err(failed(format!("a star took more than {MININET_TIME:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text =
            read_all(&output).map_err(|cause| Error::system("read a file in memory", cause))?;
        parse_star(&text).ok_or_else(|| failed(format!("a star of {hosts} hosts failed: {ended}")))
    }
}

/// Parses what the script prints.
fn parse_star(text: &str) -> Option<Star> {
    let mut figures = text.split_whitespace().map(str::parse);
    let mut next = || figures.next()?.ok();
    Some(Star {
        up_ms: next()?,
        down_ms: next()?,
        memory_mib: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_are_valid_and_figures_are_parsed() {
        let text = star_text("star", 3);
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let star = &objects.topologies[0];
        assert_eq!((star.hosts.len(), star.links.len()), (3, 3));
        let parsed = parse_star("12.5 3.25 40.0\n").unwrap();
        assert_eq!((parsed.up_ms, parsed.memory_mib), (12.5, 40.0));
        assert!(parse_star("Traceback").is_none());
    }
}
