//! `rate-overhead`: the effect of policer and shaper on a router's throughput and a packet's time
//! (Rathore et al. 2022, Fig. 7).
//!
//! One core sends frames as fast as possible and processes them, so a higher cost lowers the rate.
//! The rate never reaches a profile. Each router, the kernel's with stock tc and ours, is compared
//! with itself.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use myelin_kernel::Hook;
use myelin_linux::packet_socket::PacketSender;
use myelin_metrics::stats::Deployments;
use myelin_spec::Enforce;

use super::policing;
use crate::generator::send_all;
use crate::network::{CLIENT_PORT_MAC, Network, SERVER_LINK};
use crate::published::rate_control;
use crate::routers::{RouterKind, Routers, frame};
use crate::sampling::{Sampling, Turns};
use crate::variant::probing_core;
use crate::{Claim, Error, Experiment, Findings, Row, Session, ebpf, variants};

/// A rate above all measured ones, with the paper's burst.
const PROFILE: &str = "rate: 10Mpps, burst: 1000";
/// The same for `tc`: ten million frames of 256 B a second, a thousand at once.
const TBF: &str = "tbf rate 20480mbit burst 256000 limit 1000000";
/// Frames of a turn.
const FRAMES: u64 = 10_000;
/// Least throughput with the policer, as a share of that without.
const POLICER_BOUND: f64 = 0.97;

fn control_name(control: Enforce) -> String {
    match control {
        Enforce::Both => "policer and shaper".to_owned(),
        other => other.to_string(),
    }
}

/// Routers with their controls. The first subject of each router has no control.
const SUBJECTS: [(&str, Enforce); 10] = [
    ("linux", Enforce::None),
    ("linux", Enforce::Policer),
    ("linux", Enforce::Shaper),
    ("linux", Enforce::Both),
    ("myelin, tcx", Enforce::None),
    ("myelin, tcx", Enforce::Policer),
    ("myelin, tcx", Enforce::Shaper),
    ("myelin, tcx", Enforce::Both),
    ("myelin, xdp", Enforce::None),
    ("myelin, xdp", Enforce::Policer),
];

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rate-overhead",
    about: "throughput without control, with policer, with shaper, with both: ours against tc's; the policer's time by test runs",
    differs: "routers are chains, compared with the kernel's router and `tc`; the profile is above every measured rate, so neither policer nor shaper acts",
    run,
    plots: include_str!("../../plots/rate-overhead.yaml"),
};

fn run(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    findings.set("frame_bytes", crate::routers::FRAME_BYTES);
    policing::run(session, findings)?;
    throughput(session, findings)
}

/// A router to measure.
enum Router {
    Linux(Linux),
    Myelin(Routers),
}

impl Router {
    fn build(session: Session<'_>, router: &str, control: Enforce) -> Result<Self, Error> {
        let kind = match router {
            "linux" => return Ok(Self::Linux(Linux::new(control)?)),
            "myelin, tcx" => RouterKind::Tcx,
            _ => RouterKind::Xdp,
        };
        let sla = format!("{PROFILE}, enforce: {control}");
        Ok(Router::Myelin(Routers::new(
            session.program,
            kind,
            &[],
            &[sla],
        )?))
    }

    fn sender(&self) -> &PacketSender {
        match self {
            Self::Linux(linux) => &linux.sender,
            Router::Myelin(routers) => routers.sender(0),
        }
    }

    /// Packets that entered and did not leave. Linux's router counts none.
    fn lost(&self) -> Result<u64, Error> {
        let Router::Myelin(routers) = self else {
            return Ok(0);
        };
        let counters = routers.counters()?;
        Ok(counters[0].packets_in - counters[0].packets_out)
    }
}

/// The kernel's IP forwarding with stock traffic control. Fields drop in this order.
struct Linux {
    sender: PacketSender,
    _programs: Vec<OwnedFd>,
    _network: Network,
}

impl Linux {
    fn new(control: Enforce) -> Result<Self, Error> {
        let network = variants::kernel_router()?;
        let mut programs = vec![network.sink()?];
        let middle = &network.middle;
        if matches!(control, Enforce::Policer | Enforce::Both) {
            programs.push(middle.netns.enter(|| {
                let program = ebpf::load_tc_policer()?;
                ebpf::attach(program.as_fd(), Hook::Tcx, middle.client.index)
            })??);
        }
        if matches!(control, Enforce::Shaper | Enforce::Both) {
            middle.netns.enter(add_shaper)??;
        }
        let mut frame = frame(0);
        frame[..6].copy_from_slice(&CLIENT_PORT_MAC.0);
        Ok(Self {
            sender: network.client.sender(&frame)?,
            _programs: programs,
            _network: network,
        })
    }
}

/// Gives the link to the server a stock TBF shaper.
fn add_shaper() -> Result<(), Error> {
    let output = Command::new("tc")
        .args(["qdisc", "add", "dev", SERVER_LINK, "root"])
        .args(TBF.split(' '))
        .output()
        .map_err(|cause| Error::system("run `tc` of iproute2", cause))?;
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::system(
        "shape with `tc`",
        std::io::Error::other(messages),
    ))
}

fn throughput(session: Session<'_>, findings: &mut Findings) -> Result<(), Error> {
    let core = probing_core()?;
    let sampling = Sampling::of("throughput").rounds(8).share(0.7);
    let mut lost = vec![0; SUBJECTS.len()];
    let deploy = |turns: &mut Turns<'_>| {
        let mut routers = Vec::new();
        for (router, control) in SUBJECTS {
            session.check()?;
            routers.push(Router::build(session, router, control)?);
        }
        turns.measure(routers.len(), |subject| {
            let took = send_all(routers[subject].sender(), FRAMES, core)?;
            Ok(FRAMES as f64 / took.as_secs_f64() / 1e6)
        })?;
        for (router, lost) in routers.iter().zip(&mut lost) {
            *lost += router.lost()?;
        }
        Ok(())
    };
    let (samples, ()) =
        session.sample(sampling, findings, deploy, |samples, ()| claims(samples))?;
    for (subject, (router, control)) in SUBJECTS.into_iter().enumerate() {
        let of_none = samples.ratio_value(subject, uncontrolled(router));
        findings.add_row(
            Row::of("throughput")
                .with("router", router)
                .with("control", control_name(control))
                .with_estimate("rate", "_mpps", samples.median(subject))
                .with("of_none", of_none)
                // A dropped frame takes less time than a forwarded one.
                .with("lost_packets", lost[subject]),
        );
    }
    Ok(())
}

/// The subject of that router without control.
fn uncontrolled(router: &str) -> usize {
    let is = |subject: &(&str, Enforce)| *subject == (router, Enforce::None);
    SUBJECTS.iter().position(is).unwrap_or_default()
}

fn claims(samples: &Deployments) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (subject, (router, control)) in SUBJECTS.into_iter().enumerate() {
        let ratio = samples.ratio(subject, uncontrolled(router));
        let id = format!(
            "{router}: throughput with {} / without",
            control_name(control)
        );
        match control {
            _ if router == "linux" => {}
            Enforce::Policer => claims.push(Claim::at_least(id, ratio, POLICER_BOUND)),
            Enforce::Both => {
                for (host, published) in ["KVM", "LXC"]
                    .into_iter()
                    .zip(rate_control::THROUGHPUT_WITH_BOTH)
                {
                    let id = format!("{id}, the paper's {host}");
                    claims.push(published.add_to(Claim::at_least(id, ratio, published.value)));
                }
            }
            _ => {}
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_router_has_a_subject_without_control() {
        for (router, _) in SUBJECTS {
            assert!(SUBJECTS.contains(&(router, Enforce::None)));
        }
        // The kernel's router requires a valid frame.
        let frame = frame(0);
        let parsed = myelin_packet::parse(&frame).unwrap().five_tuple(&frame);
        assert_eq!(parsed.source.to_string(), "10.0.0.1");
    }
}
