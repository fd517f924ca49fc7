//! The results of a run of a chain.

use serde::{Deserialize, Serialize};

use crate::envelope::Claim;
use crate::{CpuUse, Distribution, Environment, ProbeResult};

/// All results of a chain's run, as its report shows them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChainReport {
    /// The chain's name.
    pub chain: String,
    /// The contract's terms with their measured figures; empty for a chain without an SLA.
    pub claims: Vec<Claim>,
    /// The SLA's bound on the one-way delay, microseconds.
    pub latency_bound_us: Option<f64>,
    /// The SLA's bound on the round trip, microseconds.
    pub round_trip_bound_us: Option<f64>,
    /// Probes by name, such as `inline, 256 B`.
    pub probes: Vec<(String, ProbeResult)>,
    /// In-band sojourn of all traffic by section; one, named `chain`, unless the chain has black
    /// boxes.
    pub sojourns: Vec<(String, Distribution)>,
    /// The chain's hops in order: front door, functions, egress.
    pub hops: Vec<Hop>,
    /// Counters of the run's packets.
    pub traffic: Traffic,
    /// The chains that were flooded during the run.
    pub floods: Vec<Flood>,
    /// CPU use during the run.
    pub cpu: Option<CpuUse>,
    /// The machine.
    pub environment: Environment,
    /// Remarks for the reader, for example about missing measurements.
    pub notes: Vec<String>,
    /// Name of the chain file.
    pub file_name: String,
    /// Its text.
    pub file_text: String,
}

impl ChainReport {
    /// Whether every claim holds; `None` without claims, or if one is undecided and none failed.
    pub fn met(&self) -> Option<bool> {
        let decided: Vec<Option<bool>> = self.claims.iter().map(|claim| claim.holds).collect();
        if decided.contains(&Some(false)) {
            Some(false)
        } else if decided.is_empty() || decided.contains(&None) {
            None
        } else {
            Some(true)
        }
    }

    /// The hop with the highest cost, measured or else predicted.
    pub fn costliest_hop(&self) -> Option<&Hop> {
        self.hops
            .iter()
            .filter(|hop| hop.cost_ns().is_some())
            .max_by(|a, b| {
                a.cost_ns()
                    .partial_cmp(&b.cost_ns())
                    .unwrap_or(std::cmp::Ordering::Equal)
            })
    }
}

/// Counters of a chain's packets.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Packets that the front door classified to the chain.
    pub packets_in: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Packets that left.
    pub packets_out: u64,
    /// Packets lost, by place.
    pub lost: Vec<(String, u64)>,
}

/// One hop of a packet's path.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "ReportHop")
)]
pub struct Hop {
    /// The function's name, or `front door`, `egress`, or a crossing between kernel and user space.
    pub name: String,
    /// The function's kind; empty for a hop that is no function.
    pub kind: String,
    /// Its space: `kernel` or `user`.
    pub space: String,
    /// Predicted cost of a packet, nanoseconds.
    pub predicted_ns: Option<f64>,
    /// Measured cost of a packet, nanoseconds.
    pub measured_ns: Option<f64>,
    /// Packets that entered it.
    pub packets_in: u64,
    /// Packets that it forwarded.
    pub packets_out: u64,
    /// Packets that it dropped.
    pub drops: u64,
}

impl Hop {
    /// The measured cost, or else the predicted one.
    pub fn cost_ns(&self) -> Option<f64> {
        self.measured_ns.or(self.predicted_ns)
    }
}

/// A chain that got more traffic than its rate while another chain was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flood {
    /// The chain's name.
    pub chain: String,
    /// Intended multiple of its rate.
    pub times: f64,
    /// UDP payload of its packets, bytes.
    pub payload_bytes: usize,
    /// Duration, s.
    pub duration_s: f64,
    /// The rate of its profile, packets of this length a second.
    pub agreed_pps: f64,
    /// Packets that its client host sent.
    pub sent: u64,
    /// Packets that the chain's front door saw.
    pub packets_in: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Packets that the chain's functions and its shaper dropped.
    pub drops: u64,
    /// Packets that left at the chain's egress.
    pub passed: u64,
    /// Sent rate, packets a second.
    pub sent_pps: f64,
    /// Passed rate, packets a second.
    pub passed_pps: f64,
    /// Passed rate as a share of the agreed one; a little above 1 if the burst passed too.
    pub profile_share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_met_if_all_claims_hold() {
        let with = |met: &[Option<bool>]| {
            let claims = met.iter().map(|&holds| Claim {
                holds,
                ..Claim::new("", ())
            });
            let report = ChainReport {
                claims: claims.collect(),
                ..ChainReport::default()
            };
            report.met()
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[Some(true), Some(true)]), Some(true));
        assert_eq!(with(&[Some(true), None]), None);
        assert_eq!(with(&[None, Some(false)]), Some(false));
    }

    #[test]
    fn costliest_hop_prefers_measured_costs() {
        let hop = |name: &str, predicted_ns, measured_ns| Hop {
            name: name.to_owned(),
            predicted_ns,
            measured_ns,
            ..Hop::default()
        };
        let mut report = ChainReport::default();
        assert_eq!(report.costliest_hop(), None);
        report.hops = vec![
            hop("door", Some(900.0), Some(40.0)),
            hop("cipher", Some(300.0), None),
            hop("filter", None, Some(250.0)),
            hop("egress", None, None),
        ];
        assert_eq!(report.costliest_hop().unwrap().name, "cipher");
    }
}
