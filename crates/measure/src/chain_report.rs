//! What a run of a chain found, as plain data: the caller fills it in, [`crate::html`] turns it into a page.

use serde::Serialize;

use crate::cpu::CpuUse;
use crate::environment::Environment;
use crate::{Distribution, ProbeResult};

/// A chain's run, everything that its page shows.
#[derive(Debug)]
pub struct ChainReport {
    /// The chain's name.
    pub chain: String,
    /// When it was measured, in words for the reader.
    pub measured_at: String,
    /// What the chain is owed and what it got; empty for a chain without an SLA.
    pub terms: Vec<Term>,
    /// The SLA's bound on the one-way delay, microseconds.
    pub latency_bound_us: Option<f64>,
    /// The SLA's bound on the round trip, microseconds.
    pub round_trip_bound_us: Option<f64>,
    /// Probes by name, such as `inline, 256 B`.
    pub probes: Vec<(String, ProbeResult)>,
    /// In-band sojourn of all traffic by section; one, named `chain`, unless the chain holds black boxes.
    pub sojourns: Vec<(String, Distribution)>,
    /// The chain's hops in order: front door, functions, egress.
    pub hops: Vec<Hop>,
    /// The chains that were flooded meanwhile.
    pub floods: Vec<Flood>,
    /// CPU use during the run.
    pub cpu: Option<CpuUse>,
    /// The machine.
    pub environment: Environment,
    /// Remarks for the reader: what was modelled, what was missing.
    pub notes: Vec<String>,
    /// Name of the chain file.
    pub file_name: String,
    /// Its text.
    pub file_text: String,
}

impl ChainReport {
    /// A report that holds nothing yet but where it was taken.
    pub fn new(chain: impl Into<String>, environment: Environment) -> Self {
        Self {
            chain: chain.into(),
            measured_at: String::new(),
            terms: Vec::new(),
            latency_bound_us: None,
            round_trip_bound_us: None,
            probes: Vec::new(),
            sojourns: Vec::new(),
            hops: Vec::new(),
            floods: Vec::new(),
            cpu: None,
            environment,
            notes: Vec::new(),
            file_name: String::new(),
            file_text: String::new(),
        }
    }

    /// Whether every term was met; `None` without terms, or when one could not be decided and none failed.
    pub fn met(&self) -> Option<bool> {
        let decided: Vec<Option<bool>> = self.terms.iter().map(|term| term.met).collect();
        if decided.contains(&Some(false)) {
            Some(false)
        } else if decided.is_empty() || decided.contains(&None) {
            None
        } else {
            Some(true)
        }
    }

    /// The hop with the highest cost, by measurement where there is one.
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

/// One line of the SLA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// What it is about, such as `latency, p99`.
    pub name: String,
    /// What is owed, such as `<= 350 us`.
    pub owed: String,
    /// What was measured, such as `12.4 us`.
    pub measured: String,
    /// Whether it was met; `None` when it could not be measured.
    pub met: Option<bool>,
}

/// One hop of the packet's way.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hop {
    /// The function's name, or `front door`, `egress`, a crossing.
    pub name: String,
    /// The function's kind; empty for what is no function.
    pub kind: String,
    /// Where it runs: `kernel` or `user`.
    pub space: String,
    /// Cost a packet by the planner's model, nanoseconds.
    pub predicted_ns: Option<f64>,
    /// Cost a packet as measured, nanoseconds.
    pub measured_ns: Option<f64>,
    /// Packets that came in.
    pub packets_in: u64,
    /// Packets that went on.
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

/// A chain that was sent more than it agreed while another one was measured, and what became of that.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Flood {
    /// The chain.
    pub chain: String,
    /// How many times its rate it was to be sent.
    pub times: f64,
    /// UDP payload of its packets, bytes.
    pub payload_bytes: usize,
    /// How long it lasted, s.
    pub duration_s: f64,
    /// The rate of its profile, packets of this length a second.
    pub agreed_pps: f64,
    /// Packets that its client host sent.
    pub sent: u64,
    /// Packets that the chain's front door saw.
    pub packets_in: u64,
    /// Those of them that the policer dropped.
    pub policed: u64,
    /// Those that the chain's functions and its shaper dropped.
    pub drops: u64,
    /// Those that left at the chain's egress.
    pub passed: u64,
    /// What was sent, packets a second.
    pub sent_pps: f64,
    /// What passed, packets a second.
    pub passed_pps: f64,
    /// What passed as a share of the agreed rate; a little above 1 where the burst passed too.
    pub profile_share: f64,
}

impl Flood {
    /// Headings of [`Self::cells`].
    pub const HEAD: [&'static str; 8] = [
        "flooded meanwhile",
        "agreed pps",
        "sent pps",
        "sent",
        "policed",
        "dropped",
        "passed",
        "of its rate",
    ];

    /// As a line of a table.
    pub fn cells(&self) -> Vec<String> {
        vec![
            format!("{} x {}", self.chain, self.times),
            format!("{:.0}", self.agreed_pps),
            format!("{:.0}", self.sent_pps),
            self.sent.to_string(),
            self.policed.to_string(),
            self.drops.to_string(),
            self.passed.to_string(),
            format!("{:.0} %", self.profile_share * 100.0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> ChainReport {
        ChainReport::new("tactile", Environment::detect())
    }

    #[test]
    fn met_when_all_terms_are() {
        let with = |met: &[Option<bool>]| {
            let mut report = empty();
            report.terms = met
                .iter()
                .map(|&met| Term {
                    name: String::new(),
                    owed: String::new(),
                    measured: String::new(),
                    met,
                })
                .collect();
            report.met()
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[Some(true), Some(true)]), Some(true));
        assert_eq!(with(&[Some(true), None]), None);
        assert_eq!(with(&[None, Some(false)]), Some(false));
    }

    #[test]
    fn costliest_by_measurement_before_model() {
        let hop = |name: &str, predicted_ns, measured_ns| Hop {
            name: name.to_owned(),
            predicted_ns,
            measured_ns,
            ..Hop::default()
        };
        let mut report = empty();
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
