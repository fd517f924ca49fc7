//! One chain's last seconds, totals and events. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use myelin_packet::sojourn::{BUCKETS, Histogram};
use myelin_spec::Sla;

use crate::sla::Binding;
use crate::sla::account::{Counts, HopCounts, Reading, WorkerTimes, max_in_transit, since};
use crate::sla::cause::{self, Context};
use crate::sla::events::{Events, Violation, format_date};
use crate::sla::judge;
use crate::sla::{
    Losses, PacketAccount, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState, SlaStatus,
    SlaVerdict, SlaWindow,
};

/// Number of seconds in a chain's history.
pub(crate) const SECONDS: usize = 300;
/// Number of seconds with sojourn histograms.
const MINUTE: usize = 60;

/// The monitor's memory of one chain.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) last: Reading,
    /// Packets lost in rings: the sum of the chain's shares.
    ring: u64,
    /// Packets lost on links between functions: the sum of the chain's shares.
    inner: u64,
    /// Packets lost at the egress: the sum of the chain's shares.
    egress: u64,
    /// Packets of the current generation that a black box has held for a second, by function.
    stuck: BTreeMap<String, u64>,
    /// Lost packets that no counter shows.
    unseen: u64,
    /// Packets missing at the last reading that cannot all have been in transit.
    overdue: u64,
    /// The last seconds, each with the time of its end.
    seconds: VecDeque<(SystemTime, SlaWindow)>,
    sojourns: VecDeque<SparseHistogram>,
    judged_s: u64,
    violated_s: u64,
    violated_now: bool,
    /// Whether a worker was restarted in the last second. The next reading finds its lost packets.
    restarted: bool,
    pub(crate) events: Events,
}

/// A chain's share of the packets lost between functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TransitLosses {
    pub(crate) ring: u64,
    pub(crate) inner: u64,
    pub(crate) egress: u64,
}

/// The readings of one second of a chain.
pub(crate) struct Second {
    pub(crate) reading: Reading,
    pub(crate) transit: TransitLosses,
    /// Length of the second, s.
    pub(crate) length_s: f64,
    pub(crate) end: SystemTime,
    pub(crate) context: Context,
}

/// A histogram without its empty buckets.
#[derive(Debug, Default)]
struct SparseHistogram {
    counts: Vec<(u16, u64)>,
    sum_ns: u64,
}

impl SparseHistogram {
    fn of(histogram: &Histogram) -> Self {
        let counts = histogram.counts().iter().zip(0..);
        Self {
            counts: counts
                .filter(|(count, _)| **count > 0)
                .map(|(count, bucket)| (bucket, *count))
                .collect(),
            sum_ns: histogram.sum_ns(),
        }
    }
}

impl History {
    /// Creates the history of a chain that has just come up. The chain's counters began at zero.
    pub(crate) fn new(reading: &Reading) -> Self {
        Self {
            last: Reading {
                name: reading.name.clone(),
                spi: reading.spi,
                generation: reading.generation,
                sla: reading.sla.clone(),
                sojourn: reading.sojourn.as_ref().map(|_| Histogram::new()),
                workers: reading.workers.clone(),
                ..Reading::default()
            },
            ..Self::default()
        }
    }

    /// Adds a second and judges it. `serial` numbers the events of all chains.
    pub(crate) fn add_second(&mut self, second: Second, serial: &mut u64) -> SlaVerdict {
        let Second {
            reading,
            transit,
            length_s,
            end,
            context,
        } = second;
        let window = self.advance_window(&reading, transit, length_s, &context);
        let sla = &reading.sla;
        let mut breaches = judge::find_breaches(sla, &window);
        breaches.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        self.violated_now = !breaches.is_empty();
        self.violated_s += u64::from(self.violated_now);
        let mut workers = context.workers.iter();
        let moved = workers.find(|worker| worker.binding != Binding::Kept);
        if let Some((worker, core)) = moved.and_then(|worker| Some((worker, worker.core?))) {
            breaches.insert(0, judge::lost_core_breach(core, worker.binding.is_lost()));
        }
        if judge::has_terms(sla) && judge::has_traffic(&window) {
            self.judged_s += 1;
        }
        match breaches.first() {
            Some(worst) => {
                let violation = Violation {
                    chain: &reading.name,
                    breaches: &breaches,
                    second: &window,
                    end,
                };
                self.events.record_violation(&violation, serial, || {
                    cause::find_cause(worst, sla.percentile, &window, &context)
                });
            }
            None => self.events.record_kept(),
        }
        let verdict = SlaVerdict {
            chain: reading.name.clone(),
            spi: reading.spi,
            terms: breaches.iter().map(|breach| breach.term).collect(),
            event: self.events.open_serial(),
        };
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back((end, window));
        let mut workers = reading.workers.iter();
        self.restarted = workers.any(|worker| self.is_restarted(worker));
        self.last = reading;
        verdict
    }

    /// Computes the figures since the last reading, and updates the loss counters of this history.
    fn advance_window(
        &mut self,
        now: &Reading,
        transit: TransitLosses,
        length_s: f64,
        context: &Context,
    ) -> SlaWindow {
        let lost_before = self.losses(&self.last.counts);
        let in_functions_before = self.losses_by_function(&self.last.counts);
        self.ring += transit.ring;
        self.inner += transit.inner;
        self.egress += transit.egress;
        self.update_stuck(now);
        let sojourn = match (&now.sojourn, &self.last.sojourn) {
            (Some(now), Some(last)) => Some(now.since(last)),
            (Some(now), None) => Some(now.clone()),
            (None, _) => None,
        };
        self.update_unseen(now, length_s, sojourn.as_ref());
        let lost = self.losses(&now.counts).since(&lost_before);
        let lost_in = since(&self.losses_by_function(&now.counts), &in_functions_before);
        if self.sojourns.len() == MINUTE {
            self.sojourns.pop_front();
        }
        self.sojourns.push_back(
            sojourn
                .as_ref()
                .map(SparseHistogram::of)
                .unwrap_or_default(),
        );
        let counts = now.counts.since(&self.last.counts);
        let mut window = compute_window(length_s, &counts, (lost, lost_in), sojourn.as_ref(), now);
        let busy: f64 = context.workers.iter().map(|worker| worker.busy).sum();
        window.worker_cores = (!context.workers.is_empty()).then_some(busy);
        window
    }

    /// Counts as lost the packets that entered a black box before the last reading and are still
    /// inside.
    fn update_stuck(&mut self, now: &Reading) {
        let is_same = now.generation == self.last.generation;
        if !is_same {
            // The drops of the previous generation now include its stuck packets.
            self.stuck.clear();
        }
        for hop in now.hops.iter().filter(|hop| hop.is_black_box) {
            let mut before = self.last.hops.iter();
            let before = before.find(|before| is_same && before.name == hop.name);
            let before = before.map(|before| before.counted).unwrap_or_default();
            let arrived = hop.counted.since(&before).packets_in;
            let stuck = hop.counted.held.saturating_sub(arrived);
            let max_stuck = self.stuck.entry(hop.name.clone()).or_default();
            *max_stuck = stuck.max(*max_stuck);
        }
    }

    /// Finds lost packets that no counter shows. A packet is lost if it arrived before the last
    /// reading, and has neither left nor been counted as lost. Packets beyond [`max_in_transit`]
    /// are lost if two readings in a row miss them. One reading is not enough, because a worker may
    /// be off its core then.
    fn update_unseen(&mut self, now: &Reading, length_s: f64, sojourn: Option<&Histogram>) {
        // No counter shows the packets that a black box creates.
        if now.may_bypass || now.hops.iter().any(|hop| hop.is_black_box) {
            return;
        }
        let fresh = now
            .counts
            .expected_out()
            .saturating_sub(self.last.counts.expected_out());
        let missing = now.counts.missing(self.ring + self.inner);
        let missing = missing.saturating_sub(now.in_shaper);
        let overdue = missing.saturating_sub(max_in_transit(fresh, length_s, sojourn));
        let lost = missing.saturating_sub(fresh).max(overdue.min(self.overdue));
        self.overdue = overdue;
        self.unseen = self.unseen.max(lost);
    }

    /// Packets in transit, or lost without a counter since the last reading.
    fn missing(&self, now: &Reading) -> u64 {
        let missing = now.counts.missing(self.ring + self.inner);
        missing.saturating_sub(self.unseen)
    }

    fn losses_by_function(&self, counts: &Counts) -> BTreeMap<String, u64> {
        let mut lost = counts.lost.clone();
        for (name, stuck) in &self.stuck {
            *lost.entry(name.clone()).or_default() += stuck;
        }
        lost
    }

    fn losses(&self, counts: &Counts) -> Losses {
        Losses {
            door: counts.door,
            ring: self.ring,
            function: counts.lost.values().sum::<u64>() + self.stuck.values().sum::<u64>(),
            shaper: counts.shaper,
            link: self.inner + self.egress,
            unseen: self.unseen,
        }
    }

    /// Accounts for the packets of `counts`. These counters may be newer than the last reading.
    pub(crate) fn account(&self, counts: &Counts) -> PacketAccount {
        let (ring, inner, egress) = (self.ring, self.inner, self.egress);
        let transit = TransitLosses {
            ring,
            inner,
            egress,
        };
        PacketAccount::new(counts, transit, &self.stuck, self.unseen)
    }

    /// Builds the chain's SLA status for the API.
    pub(crate) fn status(&self) -> SlaStatus {
        let last = &self.last;
        let (counts, sla) = (&last.counts, &last.sla);
        let lost = (self.losses(counts), self.losses_by_function(counts));
        let held: u64 = last.hops.iter().map(|hop| hop.counted.held).sum();
        SlaStatus {
            chain: last.name.clone(),
            contract: SlaContract::from(sla),
            state: match self.violated_s {
                _ if !judge::has_terms(sla) => SlaState::NoContract,
                0 => SlaState::Kept,
                _ => SlaState::Violated,
            },
            violated_s: self.violated_s,
            judged_s: self.judged_s,
            violated_now: self.violated_now,
            lost_cores: self.lost_cores(),
            second: self.last_second(),
            minute: self.last_minute(),
            life: compute_window(last.up_s, counts, lost, last.sojourn.as_ref(), last),
            under_way: if held > 0 { held } else { self.missing(last) },
            last_event: self.events.last().cloned(),
        }
    }

    fn last_second(&self) -> SlaWindow {
        let last = self.seconds.back();
        last.map(|(_, window)| window.clone()).unwrap_or_default()
    }

    /// The last `limit` seconds, the oldest first.
    pub(crate) fn last_seconds(&self, limit: usize) -> Vec<SlaSecond> {
        let older = self.seconds.len().saturating_sub(limit);
        let seconds = self.seconds.iter().skip(older);
        seconds
            .map(|(end, window)| SlaSecond {
                end: format_date(*end),
                window: window.clone(),
            })
            .collect()
    }

    fn lost_cores(&self) -> Vec<u32> {
        let workers = self.last.workers.iter();
        let lost = workers.filter(|worker| worker.binding.is_lost());
        let cores: BTreeSet<u32> = lost.filter_map(|worker| worker.core).collect();
        cores.into_iter().collect()
    }

    fn last_minute(&self) -> SlaWindow {
        let mut sum = SlaWindow::default();
        for (_, second) in self.seconds.iter().rev().take(MINUTE) {
            add(&mut sum, second);
        }
        sum.bytes_out = sum.bytes_out.filter(|_| self.last.counts_bytes_out);
        let mut counts = [0; BUCKETS];
        let mut sum_ns = 0_u64;
        for sparse in &self.sojourns {
            for (bucket, count) in &sparse.counts {
                counts[usize::from(*bucket)] += count;
            }
            sum_ns = sum_ns.saturating_add(sparse.sum_ns);
        }
        let histogram = Histogram::from_counts(&counts);
        let sojourn = self.last.sojourn.as_ref().map(|_| &histogram);
        add_rates(sum, sojourn, &self.last.sla)
    }

    /// Events with a serial above `serial`, the oldest first.
    pub(crate) fn events_after(&self, serial: u64) -> impl Iterator<Item = &SlaEvent> {
        let is_wanted = move |event: &&SlaEvent| event.serial > serial;
        self.events.iter().filter(is_wanted)
    }

    /// The worker with that process number, from the last reading.
    pub(crate) fn worker(&self, pid: u32) -> Option<&WorkerTimes> {
        self.last.workers.iter().find(|worker| worker.pid == pid)
    }

    /// Whether a worker was restarted in this second or in the previous second.
    pub(crate) fn has_restarted(&self, worker: &WorkerTimes) -> bool {
        self.restarted || self.is_restarted(worker)
    }

    fn is_restarted(&self, worker: &WorkerTimes) -> bool {
        worker.restarts > 0 && self.worker(worker.pid).is_none()
    }

    /// The function at `position` in the last reading, if the generation is the same.
    pub(crate) fn hop(&self, generation: u16, position: u8) -> Option<&HopCounts> {
        let is_same = self.last.generation == generation;
        let mut hops = self.last.hops.iter().filter(|_| is_same);
        hops.find(|hop| hop.position == position)
    }
}

/// Computes the figures of an interval from its counters and losses.
pub(super) fn compute_window(
    seconds: f64,
    counts: &Counts,
    (lost, lost_in): (Losses, BTreeMap<String, u64>),
    sojourn: Option<&Histogram>,
    now: &Reading,
) -> SlaWindow {
    let sums = SlaWindow {
        seconds,
        packets_in: counts.packets_in,
        bytes_in: counts.bytes_in,
        policed: counts.policed,
        packets_out: counts.packets_out,
        bytes_out: now.counts_bytes_out.then_some(counts.bytes_out),
        lost,
        lost_in,
        ..SlaWindow::default()
    };
    add_rates(sums, sojourn, &now.sla)
}

fn add(sum: &mut SlaWindow, window: &SlaWindow) {
    sum.seconds += window.seconds;
    sum.packets_in += window.packets_in;
    sum.bytes_in += window.bytes_in;
    sum.policed += window.policed;
    sum.packets_out += window.packets_out;
    if let Some(bytes) = window.bytes_out {
        *sum.bytes_out.get_or_insert(0) += bytes;
    }
    sum.lost.add(&window.lost);
    for (name, lost) in &window.lost_in {
        *sum.lost_in.entry(name.clone()).or_default() += lost;
    }
}

/// Adds rates and percentiles to the sums of an interval.
fn add_rates(sums: SlaWindow, sojourn: Option<&Histogram>, sla: &Sla) -> SlaWindow {
    let rate = |count: u64| {
        if sums.seconds > 0.0 {
            count as f64 / sums.seconds
        } else {
            0.0
        }
    };
    SlaWindow {
        loss_percent: judge::loss_percent(sums.packets_in, sums.policed, sums.lost.total()),
        sojourn: sojourn.and_then(|sojourn| summarize(sojourn, sla)),
        in_pps: rate(sums.packets_in),
        in_bps: rate(sums.bytes_in) * 8.0,
        out_pps: rate(sums.packets_out),
        out_bps: sums.bytes_out.map(|bytes| rate(bytes) * 8.0),
        ..sums
    }
}

fn summarize(sojourn: &Histogram, sla: &Sla) -> Option<SlaSojourn> {
    let us = |quantile: f64| Some(sojourn.quantile(quantile)? as f64 / 1e3);
    Some(SlaSojourn {
        packets: sojourn.count(),
        p50_us: us(0.5)?,
        p99_us: us(0.99)?,
        agreed_us: us(sla.percentile / 100.0)?,
        max_us: us(1.0)?,
    })
}

#[cfg(test)]
mod tests;
