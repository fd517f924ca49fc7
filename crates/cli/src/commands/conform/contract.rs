//! The contract of a chain over nodes during a measurement: its profile at the egress host, and its
//! loss and latency from the first node to the last.

use std::time::{Duration, Instant};

use myelin_api::{
    ApiError, Client, RunDir, SlaContract, SojournSource, SpanPart, SpanStatus, sojourn_parts,
};
use myelin_packet::traffic::{Bucket, Profile};
use serde::Serialize;

use crate::output;

/// Longest wait for packets under way, besides the delay of the links.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Longest wait for the seconds in which the last packet left the parts. The agents judge once a
/// second, later on a busy machine.
const JUDGED_AFTER: Duration = Duration::from_secs(20);
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A chain over nodes at the start of a measurement.
pub(super) struct MeasuredChain {
    client: Client,
    run_dir: RunDir,
    started: Instant,
    before: SpanStatus,
}

/// Loss and latency of the whole chain during a measurement.
#[derive(Debug, Serialize)]
pub(super) struct ContractReport {
    /// The chain.
    chain: String,
    /// Packets that entered the first node.
    packets_in: u64,
    /// Of these: packets above the profile, which the first node dropped.
    policed: u64,
    /// Packets that left the last node.
    packets_out: u64,
    /// Conforming packets that did not leave the last node.
    lost: u64,
    /// The share of conforming packets that were lost, percent.
    loss_percent: Option<f64>,
    /// The agreed share, percent.
    agreed_loss_percent: Option<f64>,
    /// The sojourn of the worst second at the agreed percentile, us; absent if no packet left.
    latency_us: Option<f64>,
    /// Whether the sojourn is measured from the first node to the last, or added: the worst seconds
    /// of nodes with different clocks, and the longest delay of the links between them.
    latency_source: Option<SojournSource>,
    /// The agreed sojourn, us.
    agreed_latency_us: Option<f64>,
    /// The agreed percentile.
    percentile: f64,
}

impl MeasuredChain {
    /// Starts a measurement of a chain.
    ///
    /// # Errors
    /// No agent runs, or no chain over nodes has that name.
    pub(super) fn begin(run_dir: &RunDir, name: &str) -> Result<Self, ApiError> {
        let client = Client::connect(run_dir)?.ok_or_else(|| output::not_running_error(name))?;
        let before = find(&client, name)?;
        Ok(Self {
            client,
            run_dir: run_dir.clone(),
            started: Instant::now(),
            before,
        })
    }

    /// The agreed profile.
    ///
    /// # Errors
    /// The contract has no rate.
    pub(super) fn profile(&self) -> Result<Profile, ApiError> {
        let contract = &self.before.contract;
        let bucket = |rate: Option<u64>, burst: Option<u64>| {
            rate.zip(burst)
                .and_then(|(rate, burst)| Bucket::new(rate, burst).ok())
        };
        let profile = Profile {
            packets: bucket(contract.rate_pps, contract.burst_packets),
            bits: bucket(contract.rate_bps, contract.burst_bits),
        };
        if profile.buckets().next().is_none() {
            let chain = &self.before.chain;
            return Err(ApiError::usage(format!(
                "chain `{chain}` has no `sla.rate`, so its traffic has no profile: write `conform IFACE --rate RATE`"
            )));
        }
        Ok(profile)
    }

    /// The traffic of the chain, as `--match` takes it; `None`: all packets.
    pub(super) fn traffic(&self) -> Option<String> {
        Some(self.before.traffic.clone()).filter(|traffic| !traffic.is_empty())
    }

    /// The interface and the network namespace of the host that takes the chain's packets.
    ///
    /// # Errors
    /// The topology does not run.
    pub(super) fn egress(&self) -> Result<(String, String), ApiError> {
        let SpanStatus {
            chain,
            topology,
            egress,
            ..
        } = &self.before;
        let egress = egress.as_ref().ok_or_else(|| {
            ApiError::failed(format!(
                "the topology `{topology}` of chain `{chain}` does not run: `myelin up` its file"
            ))
        })?;
        let host = self.client.host(&egress.host)?;
        Ok((egress.interface.clone(), host.netns))
    }

    /// Ends the measurement. Waits for packets that are under way, and for the judgement of the
    /// last one.
    ///
    /// # Errors
    /// The chain was removed, or an agent does not answer.
    pub(super) fn end(self) -> Result<ContractReport, ApiError> {
        let links = Duration::from_nanos(self.before.links_ns);
        let arrived = |now: &SpanStatus| self.since(now).lost == 0;
        let now = self.wait(LOST_AFTER + links, &arrived)?;
        let (after, contract) = (self.since(&now), &now.contract);
        let latency_us = match contract.latency_us {
            Some(_) if after.packets_out > 0 => self.worst_latency_us()?,
            _ => None,
        };
        let (latency_us, latency_source) = latency_us.unzip();
        let conforming = after.packets_in - after.policed;
        let loss_percent = (conforming > 0).then(|| after.lost as f64 * 100.0 / conforming as f64);
        let SlaContract {
            latency_us: agreed_latency_us,
            loss_percent: agreed_loss_percent,
            percentile,
            ..
        } = *contract;
        Ok(ContractReport {
            chain: now.chain.clone(),
            packets_in: after.packets_in,
            policed: after.policed,
            packets_out: after.packets_out,
            lost: after.lost,
            loss_percent,
            agreed_loss_percent,
            latency_us,
            latency_source,
            agreed_latency_us,
            percentile,
        })
    }

    /// Reads the chain until `is_done`, or until the time has passed.
    fn wait(
        &self,
        longest: Duration,
        is_done: &dyn Fn(&SpanStatus) -> bool,
    ) -> Result<SpanStatus, ApiError> {
        let deadline = Instant::now() + longest;
        loop {
            let now = find(&self.client, &self.before.chain)?;
            if is_done(&now) || Instant::now() > deadline {
                return Ok(now);
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Counts the packets since the start.
    fn since(&self, now: &SpanStatus) -> Counts {
        let packets_in = now.packets_in.saturating_sub(self.before.packets_in);
        let policed = now.policed.saturating_sub(self.before.policed);
        let policed = policed.min(packets_in);
        let packets_out = now.packets_out.saturating_sub(self.before.packets_out);
        Counts {
            packets_in,
            policed,
            packets_out,
            lost: (packets_in - policed).saturating_sub(packets_out),
        }
    }

    /// Returns the sojourn at the agreed percentile of the worst second, from the first node to the
    /// last, and how it is known; `None` if no second was judged.
    fn worst_latency_us(&self) -> Result<Option<(f64, SojournSource)>, ApiError> {
        let is_judged = |part: &SpanPart| {
            let judged = part.sla.as_ref().map_or(0, |sla| sla.life.packets_out);
            judged >= part.packets_out
        };
        let are_judged = |now: &SpanStatus| {
            let mut parts = now
                .paths()
                .into_iter()
                .flat_map(|path| sojourn_parts(&path));
            parts.all(is_judged)
        };
        let now = self.wait(JUDGED_AFTER, &are_judged)?;
        let Some(sojourn) = now.sojourn else {
            return Ok(None);
        };
        let mut worst: Option<f64> = None;
        for path in now.paths() {
            let mut sum = Some(sojourn.links_ns as f64 / 1e3);
            for part in sojourn_parts(&path) {
                sum = sum
                    .zip(self.worst_of_part(&now, part)?)
                    .map(|(sum, of_part)| sum + of_part);
            }
            worst = sum.into_iter().chain(worst).reduce(f64::max);
        }
        Ok(worst.map(|worst| (worst, sojourn.source)))
    }

    /// Returns the sojourn at the agreed percentile of a part's worst second.
    fn worst_of_part(&self, now: &SpanStatus, part: &SpanPart) -> Result<Option<f64>, ApiError> {
        let seconds = self.started.elapsed().as_secs_f64().ceil() as usize;
        let node = self.run_dir.of_node(&now.topology, &part.node);
        let client = Client::connect(&node)?;
        let client = client.ok_or_else(|| output::not_running_error(&part.part))?;
        let seconds = client.seconds(&part.part, seconds)?;
        let sojourns = seconds.iter().filter_map(|second| second.window.sojourn);
        Ok(sojourns.map(|sojourn| sojourn.agreed_us).reduce(f64::max))
    }
}

/// Packets of a measurement.
struct Counts {
    packets_in: u64,
    policed: u64,
    packets_out: u64,
    lost: u64,
}

fn find(client: &Client, name: &str) -> Result<SpanStatus, ApiError> {
    let spans = client.spans()?;
    let found = spans.into_iter().find(|span| span.chain == name);
    found.ok_or_else(|| {
        ApiError::usage(format!(
            "no chain over nodes `{name}` runs: `myelin ps` lists the chains; for a chain on one node write \
             `conform IFACE --rate RATE`"
        ))
    })
}

impl ContractReport {
    /// Whether the chain kept the agreed loss and latency. Without a packet it kept neither.
    pub(super) fn is_kept(&self) -> bool {
        let within = |measured: Option<f64>, agreed: Option<f64>| {
            agreed.is_none_or(|agreed| measured.is_some_and(|measured| measured <= agreed))
        };
        within(self.loss_percent, self.agreed_loss_percent)
            && within(self.latency_us, self.agreed_latency_us)
    }

    /// Describes loss and latency in two lines.
    pub(super) fn format(&self) -> String {
        let figure = |measured: Option<f64>, unit: &str| {
            measured.map_or_else(
                || "not measured".to_owned(),
                |value| format!("{value:.3} {unit}"),
            )
        };
        let agreed = |agreed: Option<f64>, unit: &str| {
            agreed.map_or_else(
                || "nothing agreed".to_owned(),
                |value| format!("at most {value} {unit} agreed"),
            )
        };
        format!(
            "{}: {} packets in, {} policed, {} out, {} lost: loss {} ({})\n{} % of the worst second within {}{} ({})",
            self.chain,
            self.packets_in,
            self.policed,
            self.packets_out,
            self.lost,
            figure(self.loss_percent, "%"),
            agreed(self.agreed_loss_percent, "%"),
            self.percentile,
            figure(self.latency_us, "us"),
            match self.latency_source {
                Some(SojournSource::Added) => ", added over nodes of different clocks",
                _ => "",
            },
            agreed(self.agreed_latency_us, "us"),
        )
    }
}
