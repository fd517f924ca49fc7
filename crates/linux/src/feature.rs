//! Probes the network features of this kernel. A probe uses the feature in a temporary namespace.

use std::fmt;

use netlink_packet_route::link::{InfoData, InfoKind, InfoVxlan};

use crate::error::{Error, ErrorKind, Result};
use crate::link::{self, LinkId, VethEnd};
use crate::netlink::{Netlink, Request};
use crate::netns::Netns;
use crate::{fq, htb, netem, qdisc};

/// A feature that a kernel build may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Link delay and loss in the kernel.
    Netem,
    /// Token bucket shaper.
    Tbf,
    /// Hierarchical token bucket shaper.
    Htb,
    /// Fair queue that delays packets until their departure time (EDT).
    Fq,
    /// Hook for tc programs and filters in both directions.
    Clsact,
    /// tc filter that runs an eBPF program.
    ClsBpf,
    /// Bridges.
    Bridge,
    /// Ethernet in UDP.
    Vxlan,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// The probe succeeded.
    Yes,
    /// The kernel does not have the feature.
    NotSupported,
    /// The probe could not run, or failed for another reason.
    Error(String),
}

impl fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::NotSupported => f.write_str("no"),
            Self::Error(error) => write!(f, "unknown: {error}"),
        }
    }
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 8] = [
        Self::Netem,
        Self::Tbf,
        Self::Htb,
        Self::Fq,
        Self::Clsact,
        Self::ClsBpf,
        Self::Bridge,
        Self::Vxlan,
    ];

    /// Returns the common name of the feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Netem => "netem",
            Self::Tbf => "tbf",
            Self::Htb => "htb",
            Self::Fq => "fq",
            Self::Clsact => "clsact",
            Self::ClsBpf => "cls_bpf",
            Self::Bridge => "bridge",
            Self::Vxlan => "vxlan",
        }
    }

    /// Returns the requests that prepare the probe, and the request whose success proves the
    /// feature.
    fn requests(self, link: &LinkId) -> Result<(Vec<Request>, Request)> {
        let single = |request| Ok((Vec::new(), request));
        match self {
            Self::Netem => single(netem::set(link, &netem::Netem::default())),
            Self::Tbf => single(qdisc::add_root_qdisc(link, "tbf", htb::token_bucket(LIMIT))),
            Self::Htb => single(htb::create(link)),
            Self::Fq => single(fq::create(link)),
            Self::Clsact => single(qdisc::add_clsact(link)),
            Self::ClsBpf => Ok((vec![qdisc::add_clsact(link)], qdisc::add_bpf_filter(link))),
            Self::Bridge => single(link::create_bridge("probe")?),
            Self::Vxlan => {
                let options = vec![InfoVxlan::Id(7), InfoVxlan::Port(4789)];
                let data = Some(InfoData::Vxlan(options));
                single(link::create("probe", InfoKind::Vxlan, data)?)
            }
        }
    }
}

/// Limit of the probed shapers: 1 MB/s, 10 KB.
const LIMIT: htb::Limit = htb::Limit {
    rate: 8_000_000,
    burst: 80_000,
};

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Probes one feature. Needs CAP_SYS_ADMIN. Leaves nothing behind, even if the process is killed.
pub fn probe(feature: Feature) -> ProbeResult {
    match try_probe(feature) {
        Ok(answer) => answer,
        Err(error) => ProbeResult::Error(error.to_string()),
    }
}

fn try_probe(feature: Feature) -> Result<ProbeResult> {
    let namespace = Netns::anonymous()?;
    let mut netlink = Netlink::open_in(&namespace)?;
    netlink.apply([link::create_veth(
        &VethEnd::named("lower"),
        &VethEnd::named("peer"),
    )?])?;
    let lower = netlink.link("lower")?.id();
    let (preparations, proof) = feature.requests(&lower)?;
    netlink.apply(preparations)?;
    match netlink.apply([proof]) {
        Ok(()) => Ok(ProbeResult::Yes),
        Err(error) if is_unknown(&error) => Ok(ProbeResult::NotSupported),
        Err(error) => Err(error),
    }
}

/// Returns whether the kernel does not know the feature. The kernel reports EOPNOTSUPP for an
/// unknown kind of link, and ENOENT for an unknown qdisc, filter or action.
fn is_unknown(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Namespace, root_or_skip};
    use std::process::{Command, Stdio};

    /// Probes the same feature with `ip` and `tc`.
    fn probe_with_tools(feature: Feature) -> bool {
        let namespace = Namespace::new(&format!("tool-{feature}"));
        let name = namespace.name().unwrap();
        let run = |line: &str| {
            // `_` stands for a space inside an argument.
            let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
            let mut command = Command::new(&words[0]);
            command
                .args(["-n", name])
                .args(&words[1..])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().unwrap().success()
        };
        assert!(run("ip link add lower type veth peer name peer"));
        match feature {
            Feature::Netem => run("tc qdisc add dev lower root netem delay 1ms"),
            Feature::Tbf => run("tc qdisc add dev lower root tbf rate 8mbit burst 10k limit 100k"),
            Feature::Htb => run("tc qdisc add dev lower root htb"),
            Feature::Fq => run("tc qdisc add dev lower root fq"),
            Feature::Clsact => run("tc qdisc add dev lower clsact"),
            Feature::ClsBpf => {
                run("tc qdisc add dev lower clsact")
                    && run("tc filter add dev lower ingress bpf bytecode 1,6_0_0_0")
            }
            Feature::Bridge => run("ip link add probe type bridge"),
            Feature::Vxlan => run("ip link add probe type vxlan id 7 dstport 4789"),
        }
    }

    #[test]
    fn probe_results_agree_with_ip_and_tc() {
        if !root_or_skip("probe_results_agree_with_ip_and_tc") {
            return;
        }
        for feature in Feature::ALL {
            let answer = probe(feature);
            println!("{feature}: {answer}");
            let expected = if probe_with_tools(feature) {
                ProbeResult::Yes
            } else {
                ProbeResult::NotSupported
            };
            assert_eq!(answer, expected, "{feature}");
        }
    }
}
