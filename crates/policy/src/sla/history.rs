//! What the monitor keeps of one chain: its last seconds, its totals and its events. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use myelin_packet::sojourn::{BUCKETS, Histogram};
use myelin_spec::Sla;

use crate::sla::Binding;
use crate::sla::account::{Counts, HopCounts, Reading, WorkerTimes, since, under_way};
use crate::sla::cause::{self, Circumstances};
use crate::sla::events::{Events, Violation, date};
use crate::sla::judge;
use crate::sla::{
    Losses, PacketAccount, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState, SlaStatus,
    SlaWindow,
};

/// Seconds that are kept.
pub(crate) const SECONDS: usize = 300;
/// Of so many of them the sojourn is kept too.
const MINUTE: usize = 60;

/// One chain.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) last: Reading,
    /// Lost in rings and on links on the way: these counts are divided among chains second by second.
    ring: u64,
    inner: u64,
    egress: u64,
    /// Of the packets in black boxes, those that have been there for a second, by function; of the generation before too.
    stuck: BTreeMap<String, u64>,
    unseen: u64,
    /// Missing at the last reading beyond what could be under way.
    overdue: u64,
    /// Each with its end.
    seconds: VecDeque<(SystemTime, SlaWindow)>,
    sojourns: VecDeque<Sparse>,
    judged_s: u64,
    violated_s: u64,
    violated_now: bool,
    /// One of its workers was started again in the last second: what it had in hand is noticed to be missing in the next one.
    restarted: bool,
    pub(crate) events: Events,
}

/// Packets lost between functions in one second, the chain's share of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Between {
    pub(crate) ring: u64,
    pub(crate) inner: u64,
    pub(crate) egress: u64,
}

/// One second of a chain, as it was read.
pub(crate) struct Second {
    pub(crate) reading: Reading,
    pub(crate) between: Between,
    /// How long it was, s.
    pub(crate) length_s: f64,
    pub(crate) end: SystemTime,
    pub(crate) around: Circumstances,
}

/// A histogram's buckets that are not empty.
#[derive(Debug, Default)]
struct Sparse {
    counts: Vec<(u16, u64)>,
    sum_ns: u64,
}

impl Sparse {
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
    /// Of a chain that has just come up: its counters began at zero.
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

    /// Takes a second in, and judges it. `serial` numbers the events of all chains.
    pub(crate) fn take(&mut self, second: Second, serial: &mut u64) {
        let Second {
            reading,
            between,
            length_s,
            end,
            around,
        } = second;
        let window = self.window(&reading, between, length_s, &around);
        let sla = &reading.sla;
        let mut breaches = judge::breaches(sla, &window);
        breaches.sort_by(|one, other| other.times.total_cmp(&one.times));
        self.violated_now = !breaches.is_empty();
        self.violated_s += u64::from(self.violated_now);
        let mut workers = around.workers.iter();
        let taken = workers.find(|worker| worker.binding != Binding::Kept);
        if let Some((worker, core)) = taken.and_then(|worker| Some((worker, worker.core?))) {
            breaches.insert(0, judge::without_core(core, worker.binding.is_lost()));
        }
        if judge::is_agreed(sla) && judge::is_telling(&window) {
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
                self.events.violated(&violation, serial, || {
                    cause::find(worst, sla.percentile, &window, &around)
                });
            }
            None => self.events.kept(),
        }
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back((end, window));
        let mut workers = reading.workers.iter();
        self.restarted = workers.any(|worker| self.is_fresh(worker));
        self.last = reading;
    }

    /// The figures of the time since the last reading. Brings up to date what counts by itself.
    fn window(
        &mut self,
        now: &Reading,
        between: Between,
        length_s: f64,
        around: &Circumstances,
    ) -> SlaWindow {
        let lost_before = self.losses(&self.last.counts);
        let in_functions_before = self.lost_in(&self.last.counts);
        self.ring += between.ring;
        self.inner += between.inner;
        self.egress += between.egress;
        self.mark_stuck(now);
        let sojourn = match (&now.sojourn, &self.last.sojourn) {
            (Some(now), Some(last)) => Some(now.since(last)),
            (Some(now), None) => Some(now.clone()),
            (None, _) => None,
        };
        self.mark_unseen(now, length_s, sojourn.as_ref());
        let lost = self.losses(&now.counts).since(&lost_before);
        let lost_in = since(&self.lost_in(&now.counts), &in_functions_before);
        if self.sojourns.len() == MINUTE {
            self.sojourns.pop_front();
        }
        self.sojourns
            .push_back(sojourn.as_ref().map(Sparse::of).unwrap_or_default());
        let counts = now.counts.since(&self.last.counts);
        let mut window = window(length_s, &counts, (lost, lost_in), sojourn.as_ref(), now);
        let busy: f64 = around.workers.iter().map(|worker| worker.busy).sum();
        window.worker_cores = (!around.workers.is_empty()).then_some(busy);
        window
    }

    /// What went into a black box before the last reading and is still there is lost in it.
    fn mark_stuck(&mut self, now: &Reading) {
        let is_same = now.generation == self.last.generation;
        if !is_same {
            // What the former generation's boxes never gave back is among its drops now.
            self.stuck.clear();
        }
        for hop in now.hops.iter().filter(|hop| hop.is_black_box) {
            let mut before = self.last.hops.iter();
            let before = before.find(|before| is_same && before.name == hop.name);
            let before = before.map(|before| before.counted).unwrap_or_default();
            let came = hop.counted.since(&before).packets_in;
            let stuck = hop.counted.held.saturating_sub(came);
            let most = self.stuck.entry(hop.name.clone()).or_default();
            *most = stuck.max(*most);
        }
    }

    /// Packets that arrived before the last reading and are neither out nor counted as lost are lost. So are those that, in two readings on end, are more
    /// than can be under way by the sojourn of the others; one reading may have found a worker that stood still.
    fn mark_unseen(&mut self, now: &Reading, length_s: f64, sojourn: Option<&Histogram>) {
        // A black box makes packets that nobody knows of.
        if now.may_pass_by || now.hops.iter().any(|hop| hop.is_black_box) {
            return;
        }
        let fresh = now.counts.owed().saturating_sub(self.last.counts.owed());
        let missing = now.counts.missing(self.ring + self.inner);
        let missing = missing.saturating_sub(now.waiting);
        let overdue = missing.saturating_sub(under_way(fresh, length_s, sojourn));
        let lost = missing.saturating_sub(fresh).max(overdue.min(self.overdue));
        self.overdue = overdue;
        self.unseen = self.unseen.max(lost);
    }

    /// Packets under way, or lost where nobody counts and not yet noticed.
    fn missing(&self, now: &Reading) -> u64 {
        let missing = now.counts.missing(self.ring + self.inner);
        missing.saturating_sub(self.unseen)
    }

    fn lost_in(&self, counts: &Counts) -> BTreeMap<String, u64> {
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

    /// Where the packets of `counts` are, which may be newer than the last reading.
    pub(crate) fn account(&self, counts: &Counts) -> PacketAccount {
        let (ring, inner, egress) = (self.ring, self.inner, self.egress);
        let between = Between {
            ring,
            inner,
            egress,
        };
        PacketAccount::new(counts, between, &self.stuck, self.unseen)
    }

    /// What is told of the chain.
    pub(crate) fn status(&self) -> SlaStatus {
        let last = &self.last;
        let (counts, sla) = (&last.counts, &last.sla);
        let lost = (self.losses(counts), self.lost_in(counts));
        let held: u64 = last.hops.iter().map(|hop| hop.counted.held).sum();
        SlaStatus {
            chain: last.name.clone(),
            contract: SlaContract::from(sla),
            state: match self.violated_s {
                _ if !judge::is_agreed(sla) => SlaState::NoContract,
                0 => SlaState::Kept,
                _ => SlaState::Violated,
            },
            violated_s: self.violated_s,
            judged_s: self.judged_s,
            violated_now: self.violated_now,
            lost_cores: self.lost_cores(),
            second: self.second(),
            minute: self.minute(),
            life: window(last.up_s, counts, lost, last.sojourn.as_ref(), last),
            under_way: if held > 0 { held } else { self.missing(last) },
            last_event: self.events.last().cloned(),
        }
    }

    fn second(&self) -> SlaWindow {
        let last = self.seconds.back();
        last.map(|(_, window)| window.clone()).unwrap_or_default()
    }

    /// The last `most` seconds that are kept, the oldest first.
    pub(crate) fn last_seconds(&self, most: usize) -> Vec<SlaSecond> {
        let older = self.seconds.len().saturating_sub(most);
        let seconds = self.seconds.iter().skip(older);
        seconds
            .map(|(end, window)| SlaSecond {
                end: date(*end),
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

    fn minute(&self) -> SlaWindow {
        let mut sum = SlaWindow::default();
        for (_, second) in self.seconds.iter().rev().take(MINUTE) {
            add(&mut sum, second);
        }
        sum.bytes_out = sum.bytes_out.filter(|_| self.last.tells_bytes_out);
        let mut counts = [0; BUCKETS];
        let mut sum_ns = 0_u64;
        for sparse in &self.sojourns {
            for (bucket, count) in &sparse.counts {
                counts[usize::from(*bucket)] += count;
            }
            sum_ns = sum_ns.saturating_add(sparse.sum_ns);
        }
        let whole = Histogram::from_counts(&counts);
        let sojourn = self.last.sojourn.as_ref().map(|_| &whole);
        with_rates(sum, sojourn, &self.last.sla)
    }

    /// Events with numbers above that one, and one that still lasts, the oldest first.
    pub(crate) fn events_after(&self, serial: u64) -> impl Iterator<Item = &SlaEvent> {
        let is_wanted = move |event: &&SlaEvent| event.serial > serial;
        self.events.iter().filter(is_wanted)
    }

    /// The worker of that process as it was last read.
    pub(crate) fn worker(&self, pid: u32) -> Option<&WorkerTimes> {
        self.last.workers.iter().find(|worker| worker.pid == pid)
    }

    /// Whether that worker was started again in this second or in the one before.
    pub(crate) fn has_restarted(&self, worker: &WorkerTimes) -> bool {
        self.restarted || self.is_fresh(worker)
    }

    fn is_fresh(&self, worker: &WorkerTimes) -> bool {
        worker.restarts > 0 && self.worker(worker.pid).is_none()
    }

    /// The function of that position as it was last read, in this generation.
    pub(crate) fn hop(&self, generation: u16, position: u8) -> Option<&HopCounts> {
        let is_same = self.last.generation == generation;
        let mut hops = self.last.hops.iter().filter(|_| is_same);
        hops.find(|hop| hop.position == position)
    }
}

/// The figures of some time: what was counted in it, and where packets of it got lost.
pub(super) fn window(
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
        bytes_out: now.tells_bytes_out.then_some(counts.bytes_out),
        lost,
        lost_in,
        ..SlaWindow::default()
    };
    with_rates(sums, sojourn, &now.sla)
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

/// Sums over some time, with the rates and percentiles that follow.
fn with_rates(sums: SlaWindow, sojourn: Option<&Histogram>, sla: &Sla) -> SlaWindow {
    let rate = |count: u64| {
        if sums.seconds > 0.0 {
            count as f64 / sums.seconds
        } else {
            0.0
        }
    };
    SlaWindow {
        loss_percent: judge::loss_percent(sums.packets_in, sums.policed, sums.lost.total()),
        sojourn: sojourn.and_then(|sojourn| figures(sojourn, sla)),
        in_pps: rate(sums.packets_in),
        in_bps: rate(sums.bytes_in) * 8.0,
        out_pps: rate(sums.packets_out),
        out_bps: sums.bytes_out.map(|bytes| rate(bytes) * 8.0),
        ..sums
    }
}

fn figures(sojourn: &Histogram, sla: &Sla) -> Option<SlaSojourn> {
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
