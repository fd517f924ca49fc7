//! `containers`: the start of a container beside plain runc, and the processor time that containers
//! get against what was asked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use myelin_api::{ContainerLimits, ContainerName, ContainerRequest, ContainerStatus};
use myelin_linux::procfs;
use myelin_metrics::stats::Deployments;
use serde_json::{Value, json};

use crate::figures::Column::{Hidden, Interval};
use crate::figures::{Figure, Subjects};
use crate::installed::find_packaged;
use crate::lab::Lab;
use crate::sampling::{Sampling, Turns};
use crate::{Claim, Error, Experiment, Fault, Findings, Row, Session};

/// Longest start of a container, relative to plain runc.
const START_BOUND: f64 = 1.2;
/// Largest deviation of a share from what was asked.
const SHARE_BOUND: f64 = 0.02;
/// Cores that must be idle, so that only its limit stops a busy container.
const IDLE_CORES: f64 = 0.1;
/// A quarter of a core, cores.
const QUARTER: f64 = 0.25;
/// The program of all containers that only start.
const IDLE: [&str; 2] = ["sleep", "1000"];
/// The program of containers that use all the time that they get.
const BUSY: [&str; 3] = ["sh", "-c", "while :; do :; done"];

const START: &[Figure<f64>] = &[Figure::new("start", Interval("_ms"), |start_ms| *start_ms)];

/// The cores that busy containers got.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// A container with a quarter of a core, in a host without limits.
    alone: f64,
    /// Two containers without limits, in a host of half a core.
    both: [f64; 2],
    /// Cores that nobody used meanwhile, the lesser of both measurements.
    idle: f64,
}

const SHARES: &[Figure<Shares>] = &[
    Figure::new("alone", Interval("_cores"), |shares| shares.alone),
    Figure::new("first", Interval("_cores"), |shares| shares.both[0]),
    Figure::new("second", Interval("_cores"), |shares| shares.both[1]),
    Figure::new("idle", Interval("_cores"), |shares| shares.idle),
    Figure::new("alone deviation", Hidden, |shares| deviation(shares.alone)),
    Figure::new("first deviation", Hidden, |shares| {
        deviation(shares.both[0])
    }),
    Figure::new("second deviation", Hidden, |shares| {
        deviation(shares.both[1])
    }),
];

fn deviation(cores: f64) -> f64 {
    (cores / QUARTER - 1.0).abs()
}

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "containers",
    about: "time to start a container in a host, beside plain runc, and the processor time of containers against their limits",
    differs: "",
    run,
    plots: include_str!("../../plots/containers.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    if let Err(reason) = find_packaged("runc", "runc") {
        findings.add_row(Findings::skipped_row("engine", "runc", &reason));
        return Ok(());
    }
    measure_starts(session, findings)?;
    measure_shares(session, findings)
}

/// Two hosts, of which the second has half a core.
struct Hosts(Lab);

impl Hosts {
    fn make(session: Session<'_>) -> Result<Self, Error> {
        let cores = 0.5 * share_factor(session);
        let text = |name: &str| {
            format!(
                "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
                 hosts: [ h1, {{ name: h2, cpu: {cores}cores }} ]\n  links: [ {{ ends: [ h1, h2 ] }} ]\n"
            )
        };
        Lab::start(session.program, text).map(Self)
    }

    fn add(
        &self,
        (host, name): (&str, &str),
        command: &[&str],
        cpu_millicores: Option<u32>,
    ) -> Result<ContainerStatus, Error> {
        let request = ContainerRequest {
            host: format!("{}/{host}", self.0.name),
            name: name.to_owned(),
            command: command.iter().map(ToString::to_string).collect(),
            limits: ContainerLimits {
                cpu_millicores,
                memory_bytes: None,
            },
            ..ContainerRequest::default()
        };
        Ok(self.0.agent.client.add_container(&request)?)
    }

    fn remove(&self, (host, name): (&str, &str)) -> Result<(), Error> {
        let container = ContainerName {
            host: format!("{}/{host}", self.0.name),
            name: name.to_owned(),
        };
        Ok(self.0.agent.client.remove_container(&container).map(drop)?)
    }

    /// Measures the cores that these containers of a host use during `window`, and the cores that
    /// nobody uses.
    fn cores<const N: usize>(
        &self,
        (host, names): (&str, [&str; N]),
        window: Duration,
    ) -> Result<([f64; N], f64), Error> {
        let idle = || -> Result<f64, Error> {
            let times = procfs::cpu_times()?;
            Ok(times.iter().map(|cpu| cpu.idle.as_secs_f64()).sum())
        };
        let read = || -> Result<([f64; N], Instant), Error> {
            let all = self.0.agent.client.containers()?;
            let of = |name: &str| {
                let mut all = all.iter();
                let found = all.find(|found| found.host == host && found.name == name);
                found.map_or(f64::NAN, |found| found.cpu_s)
            };
            Ok((names.map(of), Instant::now()))
        };
        let idle_before = idle()?;
        let (before, start) = read()?;
        std::thread::sleep(window);
        let (after, end) = read()?;
        let passed = (end - start).as_secs_f64();
        let idle = (idle()? - idle_before) / passed;
        let cores = std::array::from_fn(|index| (after[index] - before[index]) / passed);
        Ok((cores, idle))
    }
}

/// The factor of all limits.
fn share_factor(session: Session<'_>) -> f64 {
    if session.has_fault(Fault::WrongShares) {
        2.0
    } else {
        1.0
    }
}

fn measure_starts(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let subjects: Subjects<f64, 1> = Subjects::new(START, [2]);
    let deploy = |turns: &mut Turns<'_>| {
        let hosts = Hosts::make(session)?;
        let plain = PlainRunc::prepare(&hosts)?;
        subjects.measure(turns, |[engine]| match engine {
            0 => {
                let start = Instant::now();
                hosts.add(("h1", "c"), &IDLE, None)?;
                if session.has_fault(Fault::TwoStarts) {
                    hosts.add(("h2", "c"), &IDLE, None)?;
                }
                let start_ms = start.elapsed().as_secs_f64() * 1e3;
                hosts.remove(("h1", "c"))?;
                if session.has_fault(Fault::TwoStarts) {
                    hosts.remove(("h2", "c"))?;
                }
                Ok(start_ms)
            }
            _ => plain.start(),
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let of = |engine| subjects.at(samples, [engine]);
        let ratio = of(0).ratio(&of(1), "start");
        vec![Claim::at_most("start, myelin / runc", ratio, START_BOUND)]
    };
    let sampling = Sampling::of("starts");
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let name = |engine| if engine == 0 { "myelin" } else { "runc" };
    let rows = subjects.rows(&samples, |[engine]| {
        Row::of("starts").with("engine", name(engine))
    });
    findings.rows.extend(rows);
    Ok(())
}

fn measure_shares(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let ms = session.effort.choose(200, 1000, 3000);
    let window = Duration::from_millis(ms);
    findings.set("window_ms", ms);
    let subjects: Subjects<Shares, 1> = Subjects::new(SHARES, [1]);
    let deploy = |turns: &mut Turns<'_>| {
        let hosts = Hosts::make(session)?;
        subjects.measure(turns, |_| {
            let quarter = ("h1", "alone");
            hosts.add(quarter, &BUSY, Some(250 * share_factor(session) as u32))?;
            let ([alone], idle) = hosts.cores(("h1", ["alone"]), window)?;
            hosts.remove(quarter)?;
            for name in ["first", "second"] {
                hosts.add(("h2", name), &BUSY, None)?;
            }
            let (both, idle_of_both) = hosts.cores(("h2", ["first", "second"]), window)?;
            for name in ["first", "second"] {
                hosts.remove(("h2", name))?;
            }
            let idle = idle.min(idle_of_both);
            Ok(Shares { alone, both, idle })
        })
    };
    let claims = |samples: &Deployments, (): &()| {
        let of = |figure: &str| subjects.at(samples, [0]).median(figure);
        let is_free = of("idle").is_some_and(|idle| idle.value >= IDLE_CORES);
        let precondition = is_free.then_some(()).ok_or_else(|| {
            "other programs used all cores: repeat the run on a quiet machine".to_owned()
        });
        let claim = |id: &str, figure| {
            Claim::at_most(id, of(figure), SHARE_BOUND).provided(precondition.clone())
        };
        vec![
            claim("deviation from a quarter of a core", "alone deviation"),
            claim("deviation, first of two in half a core", "first deviation"),
            claim(
                "deviation, second of two in half a core",
                "second deviation",
            ),
        ]
    };
    let sampling = Sampling::of("shares").rounds(1);
    let (samples, ()) = session.sample(sampling, findings, deploy, claims)?;
    let rows = subjects.rows(&samples, |_| Row::of("shares").with("asked_cores", QUARTER));
    findings.rows.extend(rows);
    Ok(())
}

/// Containers of plain runc, with the configuration that Myelin writes.
struct PlainRunc {
    /// Below the run directory of the agent, which is removed with it.
    bundle: PathBuf,
    id: String,
}

impl PlainRunc {
    /// Copies the bundle of a container of Myelin.
    fn prepare(hosts: &Hosts) -> Result<Self, Error> {
        let made = hosts.add(("h1", "model"), &IDLE, None)?;
        let model = hosts.0.agent.dir.run_dir.containers().join(&made.id);
        let plain = Self {
            bundle: hosts.0.agent.dir.run_dir.path().join("plain"),
            id: format!("{}-plain", made.id),
        };
        let netns = format!("/run/netns/myelin-{}-h1", hosts.0.name);
        let copied = plain.copy(&model, &netns);
        copied.map_err(|cause| Error::system("copy the bundle of a container", cause))?;
        hosts.remove(("h1", "model"))?;
        Ok(plain)
    }

    fn copy(&self, model: &Path, netns: &str) -> std::io::Result<()> {
        let text = std::fs::read(model.join("config.json"))?;
        let mut config: Value = serde_json::from_slice(&text)?;
        config["linux"]["cgroupsPath"] = json!(format!("/{}", self.id));
        let namespaces = config["linux"]["namespaces"].as_array_mut();
        for namespace in namespaces.into_iter().flatten() {
            if namespace["type"] == "network" {
                namespace["path"] = json!(netns);
            }
        }
        let bundle = &self.bundle;
        std::fs::create_dir_all(bundle)?;
        std::fs::write(bundle.join("config.json"), config.to_string())?;
        // The links of the top directory; the mount points are made again.
        let rootfs = bundle.join("rootfs");
        std::fs::create_dir(&rootfs)?;
        for entry in std::fs::read_dir(model.join("rootfs"))?.flatten() {
            if let Ok(target) = std::fs::read_link(entry.path()) {
                std::os::unix::fs::symlink(target, rootfs.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("runc");
        command
            .arg("--root")
            .arg(self.bundle.join("state"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Starts a container and removes it. Returns the time of the start, ms.
    fn start(&self) -> Result<f64, Error> {
        let mut command = self.command(&["run", "--detach", "--bundle"]);
        let start = Instant::now();
        let started = command.arg(&self.bundle).arg(&self.id).status();
        let start_ms = start.elapsed().as_secs_f64() * 1e3;
        self.remove();
        match started {
            Ok(status) if status.success() => Ok(start_ms),
            Ok(status) => Err(Error::Peer {
                peer: "runc".to_owned(),
                reason: format!("it does not start a container: {status}"),
            }),
            Err(cause) => Err(Error::system("run runc", cause)),
        }
    }

    fn remove(&self) {
        let _ = self.command(&["delete", "--force", &self.id]).status();
    }
}

impl Drop for PlainRunc {
    fn drop(&mut self) {
        self.remove();
    }
}
