//! Why a second violated a contract, and where, as far as what was measured in it tells. Pure.
//!
//! Lost packets are looked at first: the place that lost most of them. Packets that are late, and rings that overflow, are those of a worker or a
//! core that did not get on. It had no time left (overload), or was kept from running: by the hypervisor (steal) or by others on
//! the machine (neighbour). What kept it explains the lateness of a percentile when it took at least the share of the
//! second that the percentile leaves out.

use crate::sla::Binding;
use crate::sla::account::HopCounts;
use crate::sla::judge::Breach;
use crate::sla::{SlaCause, SlaTerm, SlaWindow};

/// A worker or a core that ran for more than this share of a second had no time left.
const BUSY: f64 = 0.9;
/// Share of a second that is noticed at all: a tick of the kernel's accounting.
const TICK: f64 = 0.01;
/// A hop whose packets cost this many times what they mostly do is named.
const GROWN: f64 = 2.0;

/// How one worker of the chain fared in the second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkerLoad {
    pub(crate) pid: u32,
    pub(crate) core: Option<u32>,
    pub(crate) polls: bool,
    /// It ended and was started again.
    pub(crate) restarted: bool,
    /// Share of the second that it ran.
    pub(crate) busy: f64,
    /// Share that it was ready to run and something else ran.
    pub(crate) waited: f64,
    /// Whether it has its core.
    pub(crate) binding: Binding,
    /// The function whose ring leads to it.
    pub(crate) first: Option<u8>,
    /// The chain that had most of its packets, if that is another one, and its share of them.
    pub(crate) neighbour: Option<(String, f64)>,
}

/// How one core fared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoreLoad {
    /// Its number.
    pub core: u32,
    /// Share of the second that the hypervisor took.
    pub steal: f64,
    /// Share in soft interrupts, where kernel functions run.
    pub softirq: f64,
    /// Share with nothing to do.
    pub idle: f64,
}

/// What else was measured in the second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Circumstances {
    pub(crate) workers: Vec<WorkerLoad>,
    pub(crate) cores: Vec<CoreLoad>,
    /// What the functions did in it.
    pub(crate) hops: Vec<HopCounts>,
    /// What a packet costs each of them over the generation's life, ns.
    pub(crate) usual_ns: Vec<Option<f64>>,
    /// The function before which rings lost most.
    pub(crate) ring: Option<u8>,
    /// The interface that lost packets.
    pub(crate) link: Option<String>,
}

/// What is said of a second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    pub(crate) cause: SlaCause,
    pub(crate) hop: String,
    pub(crate) evidence: Vec<String>,
}

impl Finding {
    fn new(cause: SlaCause, hop: impl Into<String>, evidence: Vec<String>) -> Self {
        let hop = hop.into();
        Self {
            cause,
            hop,
            evidence,
        }
    }
}

/// The hop where nothing tells.
const NOWHERE: &str = "-";

/// Finds the cause of the worst breach of a second.
pub(crate) fn find(
    worst: &Breach,
    percentile: f64,
    second: &SlaWindow,
    around: &Circumstances,
) -> Finding {
    match worst.term {
        SlaTerm::Core => of_binding(around),
        SlaTerm::Loss => of_loss(second, around),
        SlaTerm::Latency => {
            let late = (1.0 - percentile / 100.0).max(TICK);
            let mut finding = of_delay(late, second.lost.ring, around);
            if finding.hop == NOWHERE
                && let Some((hop, what)) = dearest(around)
            {
                finding.hop = hop;
                finding.evidence.push(what);
            }
            let lossy = second
                .lost
                .by_place()
                .into_iter()
                .filter(|(_, lost)| *lost > 0);
            finding
                .evidence
                .extend(lossy.map(|(place, lost)| format!("{lost} packets lost: {place}")));
            finding
        }
    }
}

/// Of a worker that was taken off its core.
fn of_binding(around: &Circumstances) -> Finding {
    let mut workers = around.workers.iter();
    let taken = workers.find(|worker| worker.binding != Binding::Kept);
    let Some((worker, core)) = taken.and_then(|worker| Some((worker, worker.core?))) else {
        return unknown(Vec::new());
    };
    let pid = worker.pid;
    let (what, remedy) = match worker.binding {
        Binding::Offline => (
            format!("core {core} is offline"),
            format!("write 1 to /sys/devices/system/cpu/cpu{core}/online"),
        ),
        Binding::Forbidden => (
            format!("core {core} was taken out of those that worker {pid} may use"),
            format!("give core {core} back to the cpuset of its control group"),
        ),
        Binding::Kept | Binding::Restored => {
            let what = format!("worker {pid} was taken off core {core} and is bound to it again");
            return Finding::new(SlaCause::Core, hop_of(around, worker), vec![what]);
        }
    };
    Finding::new(
        SlaCause::Core,
        hop_of(around, worker),
        vec![
            what,
            format!("worker {pid} has what others leave it on the other cores, without a promise"),
            format!(
                "remedy: {remedy}, or `myelin down` the chain and bring it up with another `worker: {{ core }}`"
            ),
        ],
    )
}

fn of_loss(second: &SlaWindow, around: &Circumstances) -> Finding {
    let lost = &second.lost;
    let places = lost.by_place();
    let Some((place, packets)) = places.into_iter().max_by_key(|(_, packets)| *packets) else {
        return unknown(Vec::new());
    };
    match place {
        "function" => {
            let dropped = second.lost_in.iter().max_by_key(|(_, packets)| **packets);
            let (hop, dropped) =
                dropped.map_or((NOWHERE, packets), |(hop, packets)| (hop, *packets));
            let came = around
                .hops
                .iter()
                .find(|one| one.name == hop)
                .map_or(String::new(), |one| {
                    format!(" of {}", one.counted.packets_in)
                });
            Finding::new(
                SlaCause::Function,
                hop,
                vec![format!("function {hop} dropped {dropped}{came} packets")],
            )
        }
        "ring" => {
            let mut finding = of_delay(TICK, packets, around);
            finding.hop = around
                .ring
                .and_then(|position| name(around, position))
                .unwrap_or_else(|| "egress".to_owned());
            let before = format!("rings before {} lost {packets} packets", finding.hop);
            finding.evidence.insert(0, before);
            finding
        }
        "link" => Finding::new(
            SlaCause::Link,
            "egress",
            vec![format!(
                "{} lost {packets} packets that were to leave on it",
                around.link.as_deref().unwrap_or("an interface")
            )],
        ),
        "shaper" => Finding::new(
            SlaCause::Overload,
            "shaper",
            vec![format!("the shaper dropped {packets} packets")],
        ),
        "door" => Finding::new(
            SlaCause::Failure,
            around
                .workers
                .first()
                .map_or_else(|| NOWHERE.to_owned(), |worker| hop_of(around, worker)),
            vec![format!(
                "the front door found nobody to hand {packets} packets to"
            )],
        ),
        _ => {
            let missing = format!("{packets} packets have been missing for a second");
            let restarted = around.workers.iter().find(|worker| worker.restarted);
            let Some(worker) = restarted else {
                return unknown(vec![missing]);
            };
            Finding::new(
                SlaCause::Failure,
                hop_of(around, worker),
                vec![missing, "a worker was started again".to_owned()],
            )
        }
    }
}

/// Why packets waited. `late`: share of the second that explains it; `overflowed`: packets that found a ring full.
fn of_delay(late: f64, overflowed: u64, around: &Circumstances) -> Finding {
    if let Some(worker) = around.workers.iter().find(|worker| worker.restarted) {
        return Finding::new(
            SlaCause::Failure,
            hop_of(around, worker),
            vec!["a worker was started again".to_owned()],
        );
    }
    // The worker that got on worst.
    let behind = |worker: &WorkerLoad| {
        let stolen = steal_of(around, worker.core);
        let busy = if worker.polls { 0.0 } else { worker.busy };
        busy + worker.waited + stolen
    };
    let worst = around
        .workers
        .iter()
        .max_by(|one, other| behind(one).total_cmp(&behind(other)));
    match worst {
        Some(worker) => of_worker(late, overflowed, around, worker),
        None => of_cores(late, around),
    }
}

fn of_worker(late: f64, overflowed: u64, around: &Circumstances, worker: &WorkerLoad) -> Finding {
    let steal = steal_of(around, worker.core);
    let core = worker
        .core
        .map_or(String::new(), |core| format!(" on core {core}"));
    let mut evidence = vec![format!(
        "worker {} ran {:.1} % of the second{core} and waited {:.1} %",
        worker.pid,
        worker.busy * 100.0,
        worker.waited * 100.0
    )];
    let hop = hop_of(around, worker);
    let is_full = !worker.polls && worker.busy >= BUSY;
    let kept = steal.max(worker.waited);
    if kept >= late && !is_full {
        if steal >= worker.waited {
            let part = steal * 100.0;
            evidence.push(format!(
                "the hypervisor took {part:.1} % of the second{core}"
            ));
        }
        let cause = if steal >= worker.waited {
            SlaCause::Steal
        } else {
            SlaCause::Neighbour
        };
        return Finding::new(cause, hop, evidence);
    }
    if !is_full && overflowed == 0 {
        return unknown(evidence);
    }
    let cause = match &worker.neighbour {
        Some((chain, share)) => {
            let share = share * 100.0;
            evidence.push(format!("{share:.0} % of its packets were of chain {chain}"));
            SlaCause::Neighbour
        }
        None => SlaCause::Overload,
    };
    Finding::new(cause, hop, evidence)
}

/// A chain in the kernel runs on whatever core its packets come in.
fn of_cores(late: f64, around: &Circumstances) -> Finding {
    let cores = around.cores.iter();
    let stolen = cores
        .clone()
        .max_by(|one, other| one.steal.total_cmp(&other.steal));
    if let Some(core) = stolen.filter(|core| core.steal >= late) {
        return Finding::new(
            SlaCause::Steal,
            NOWHERE,
            vec![format!(
                "the hypervisor took {:.1} % of the second on core {}",
                core.steal * 100.0,
                core.core
            )],
        );
    }
    let fullest = cores.min_by(|one, other| one.idle.total_cmp(&other.idle));
    let Some(core) = fullest.filter(|core| core.idle < 1.0 - BUSY) else {
        return unknown(Vec::new());
    };
    let evidence = vec![format!(
        "core {} was idle for {:.1} % of the second and in soft interrupts for {:.1} %",
        core.core,
        core.idle * 100.0,
        core.softirq * 100.0
    )];
    Finding::new(
        if core.softirq >= 0.5 {
            SlaCause::Overload
        } else {
            SlaCause::Neighbour
        },
        NOWHERE,
        evidence,
    )
}

/// The hop whose packets cost the chain most above what they mostly do.
fn dearest(around: &Circumstances) -> Option<(String, String)> {
    let grown = around
        .hops
        .iter()
        .zip(&around.usual_ns)
        .filter_map(|(hop, usual)| {
            let now = hop.counted.cost_ns()?;
            let usual = (*usual)?;
            (now >= usual * GROWN).then_some((hop, now, usual))
        });
    let above =
        |(hop, now, usual): &(&HopCounts, f64, f64)| (now - usual) * hop.counted.packets_in as f64;
    let (hop, now, usual) = grown.max_by(|one, other| above(one).total_cmp(&above(other)))?;
    let text = format!(
        "a packet cost {} {now:.0} ns in the mean, mostly {usual:.0} ns",
        hop.name
    );
    Some((hop.name.clone(), text))
}

fn steal_of(around: &Circumstances, core: Option<u32>) -> f64 {
    let cores = around.cores.iter();
    let taken = cores.filter(|one| core.is_none_or(|core| one.core == core));
    taken.map(|one| one.steal).fold(0.0, f64::max)
}

fn hop_of(around: &Circumstances, worker: &WorkerLoad) -> String {
    worker
        .first
        .and_then(|position| name(around, position))
        .unwrap_or_else(|| NOWHERE.to_owned())
}

fn name(around: &Circumstances, position: u8) -> Option<String> {
    let mut hops = around.hops.iter();
    let hop = hops.find(|hop| hop.position == position)?;
    Some(hop.name.clone())
}

fn unknown(evidence: Vec<String>) -> Finding {
    Finding::new(SlaCause::Unknown, NOWHERE, evidence)
}

#[cfg(test)]
mod tests;
