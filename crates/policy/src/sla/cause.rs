//! Finds the cause of a contract violation in a second, and the function concerned. Pure.
//!
//! Lost packets come first: the place that lost most of them is the cause. For late packets and
//! full rings the monitor looks at the worker or core with the least progress. That worker or core
//! had no time left (overload), or the hypervisor (steal) or another program (neighbour) kept the
//! worker from running. Stolen or waited time explains a late percentile if it is at least the
//! share of the second above the percentile.

use crate::sla::Binding;
use crate::sla::account::HopCounts;
use crate::sla::judge::Breach;
use crate::sla::{SlaCause, SlaTerm, SlaWindow};

/// A worker or core that ran for more than this share of a second had no time left.
const BUSY: f64 = 0.9;
/// Smallest share of a second that counts as a cause: one tick of the kernel's accounting.
const TICK: f64 = 0.01;
/// Factor by which a function's cost must exceed its usual cost, for the function to be the hop.
const GROWN: f64 = 2.0;

/// The times of one of the chain's workers in the second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WorkerLoad {
    pub(crate) pid: u32,
    pub(crate) core: Option<u32>,
    pub(crate) is_polling: bool,
    /// Whether the worker ended and the agent restarted it.
    pub(crate) restarted: bool,
    /// Share of the second on a core.
    pub(crate) busy: f64,
    /// Share of the second ready to run while something else ran.
    pub(crate) waited: f64,
    /// Share of the second in which packets waited for the worker's turn on a shared core.
    pub(crate) turn_waited: f64,
    /// Whether the worker runs on its core.
    pub(crate) binding: Binding,
    /// Position of the first function that the worker runs.
    pub(crate) first_position: Option<u8>,
    /// Another chain with most of the worker's packets, and that chain's share of the packets.
    pub(crate) neighbour: Option<(String, f64)>,
}

/// The times of one core in the second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoreLoad {
    /// Core number.
    pub core: u32,
    /// Share of the second that the hypervisor took.
    pub steal: f64,
    /// Share of the second in soft interrupts, where kernel functions run.
    pub softirq: f64,
    /// Share of the second in which the core was idle.
    pub idle: f64,
}

/// The measurements of a second that can explain a violation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Context {
    pub(crate) workers: Vec<WorkerLoad>,
    pub(crate) cores: Vec<CoreLoad>,
    /// The functions' counters of the second.
    pub(crate) hops: Vec<HopCounts>,
    /// Mean cost of a packet in each function over the generation's life, ns.
    pub(crate) usual_ns: Vec<Option<f64>>,
    /// Position of the function whose rings lost the most packets.
    pub(crate) ring: Option<u8>,
    /// The interface that lost the most packets.
    pub(crate) link: Option<String>,
}

/// The cause of a violation, its hop, and the figures that support it.
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

/// The hop of a cause outside the functions.
const NOWHERE: &str = "-";

/// Finds the cause of the worst breach of a second.
pub(crate) fn find_cause(
    worst: &Breach,
    percentile: f64,
    second: &SlaWindow,
    context: &Context,
) -> Finding {
    match worst.term {
        SlaTerm::Core => explain_lost_core(context),
        SlaTerm::Loss => explain_loss(second, context),
        SlaTerm::Latency => {
            let late = (1.0 - percentile / 100.0).max(TICK);
            let mut finding = explain_delay(late, second.lost.ring, context);
            if finding.hop == NOWHERE
                && let Some((hop, text)) = find_costlier_function(context)
            {
                finding.hop = hop;
                finding.evidence.push(text);
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

/// Explains a worker that was moved off its core.
fn explain_lost_core(context: &Context) -> Finding {
    let mut workers = context.workers.iter();
    let moved = workers.find(|worker| worker.binding != Binding::Kept);
    let Some((worker, core)) = moved.and_then(|worker| Some((worker, worker.core?))) else {
        return unknown_cause(Vec::new());
    };
    let pid = worker.pid;
    let (fault, remedy) = match worker.binding {
        Binding::Offline => (
            format!("core {core} is offline"),
            format!("write 1 to /sys/devices/system/cpu/cpu{core}/online"),
        ),
        Binding::Forbidden => (
            format!("the cpuset of worker {pid} no longer includes core {core}"),
            format!("add core {core} to the cpuset of the worker's control group"),
        ),
        Binding::Kept | Binding::Restored => {
            let fault = format!(
                "worker {pid} had left core {core}; the agent has bound the worker to that core again"
            );
            return Finding::new(SlaCause::Core, first_hop(context, worker), vec![fault]);
        }
    };
    Finding::new(
        SlaCause::Core,
        first_hop(context, worker),
        vec![
            fault,
            format!(
                "worker {pid} runs on other cores together with other programs, without a guarantee"
            ),
            format!(
                "remedy: {remedy}, or remove the chain with `myelin down` and deploy it with another `worker: {{ cores }}`"
            ),
        ],
    )
}

fn explain_loss(second: &SlaWindow, context: &Context) -> Finding {
    let lost = &second.lost;
    let places = lost.by_place();
    let Some((place, packets)) = places.into_iter().max_by_key(|(_, packets)| *packets) else {
        return unknown_cause(Vec::new());
    };
    match place {
        "function" => {
            let dropped = second.lost_in.iter().max_by_key(|(_, packets)| **packets);
            let (hop, dropped) =
                dropped.map_or((NOWHERE, packets), |(hop, packets)| (hop, *packets));
            let arrived = context
                .hops
                .iter()
                .find(|candidate| candidate.name == hop)
                .map_or(String::new(), |function| {
                    format!(" of {}", function.counted.packets_in)
                });
            Finding::new(
                SlaCause::Function,
                hop,
                vec![format!("function {hop} dropped {dropped}{arrived} packets")],
            )
        }
        "ring" => {
            let mut finding = explain_delay(TICK, packets, context);
            finding.hop = context
                .ring
                .and_then(|position| hop_name(context, position))
                .unwrap_or_else(|| "egress".to_owned());
            let overflow = format!("rings before {} lost {packets} packets", finding.hop);
            finding.evidence.insert(0, overflow);
            finding
        }
        "link" => Finding::new(
            SlaCause::Link,
            "egress",
            vec![format!(
                "{} lost {packets} outgoing packets",
                context.link.as_deref().unwrap_or("an interface")
            )],
        ),
        "shaper" => Finding::new(
            SlaCause::Overload,
            "shaper",
            vec![format!("the shaper dropped {packets} packets")],
        ),
        "door" => Finding::new(
            SlaCause::Failure,
            context
                .workers
                .first()
                .map_or_else(|| NOWHERE.to_owned(), |worker| first_hop(context, worker)),
            vec![format!(
                "the front door dropped {packets} packets, because no worker and no program could take them"
            )],
        ),
        _ => {
            let missing = format!("{packets} packets were missing for a second");
            let restarted = context.workers.iter().find(|worker| worker.restarted);
            let Some(worker) = restarted else {
                return unknown_cause(vec![missing]);
            };
            Finding::new(
                SlaCause::Failure,
                first_hop(context, worker),
                vec![missing, "a worker was restarted".to_owned()],
            )
        }
    }
}

/// Explains late packets. `late` is the share of the second above the percentile. `overflowed` is
/// the number of packets that full rings dropped.
fn explain_delay(late: f64, overflowed: u64, context: &Context) -> Finding {
    if let Some(worker) = context.workers.iter().find(|worker| worker.restarted) {
        return Finding::new(
            SlaCause::Failure,
            first_hop(context, worker),
            vec!["a worker was restarted".to_owned()],
        );
    }
    // The worker with the least progress.
    let unavailable = |worker: &WorkerLoad| {
        let stolen = stolen_share(context, worker.core);
        let busy = if worker.is_polling { 0.0 } else { worker.busy };
        busy + worker.waited + worker.turn_waited + stolen
    };
    let worst = context
        .workers
        .iter()
        .max_by(|a, b| unavailable(a).total_cmp(&unavailable(b)));
    match worst {
        Some(worker) => explain_worker(late, overflowed, context, worker),
        None => explain_cores(late, context),
    }
}

fn explain_worker(late: f64, overflowed: u64, context: &Context, worker: &WorkerLoad) -> Finding {
    let steal = stolen_share(context, worker.core);
    let core = worker
        .core
        .map_or(String::new(), |core| format!(" on core {core}"));
    let mut evidence = vec![format!(
        "worker {} ran {:.1} % of the second{core} and waited {:.1} %",
        worker.pid,
        worker.busy * 100.0,
        worker.waited * 100.0
    )];
    let hop = first_hop(context, worker);
    let is_full = !worker.is_polling && worker.busy >= BUSY;
    let blocked = steal.max(worker.waited);
    if blocked >= late && !is_full {
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
    if worker.turn_waited >= late && !is_full {
        evidence.push(format!(
            "its packets waited {:.1} % of the second for its turn{core}",
            worker.turn_waited * 100.0
        ));
        return Finding::new(SlaCause::Sharing, hop, evidence);
    }
    if !is_full && overflowed == 0 {
        return unknown_cause(evidence);
    }
    let cause = match &worker.neighbour {
        Some((chain, share)) => {
            let share = share * 100.0;
            evidence.push(format!(
                "{share:.0} % of the worker's packets belonged to chain {chain}"
            ));
            SlaCause::Neighbour
        }
        None => SlaCause::Overload,
    };
    Finding::new(cause, hop, evidence)
}

/// Explains late packets of a kernel chain, which runs on any core that receives packets.
fn explain_cores(late: f64, context: &Context) -> Finding {
    let cores = context.cores.iter();
    let stolen = cores.clone().max_by(|a, b| a.steal.total_cmp(&b.steal));
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
    let fullest = cores.min_by(|a, b| a.idle.total_cmp(&b.idle));
    let Some(core) = fullest.filter(|core| core.idle < 1.0 - BUSY) else {
        return unknown_cause(Vec::new());
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

/// Finds the function whose total cost grew most above its usual cost. Returns its name and the
/// evidence text.
fn find_costlier_function(context: &Context) -> Option<(String, String)> {
    let grown = context
        .hops
        .iter()
        .zip(&context.usual_ns)
        .filter_map(|(hop, usual)| {
            let now = hop.counted.cost_ns()?;
            let usual = (*usual)?;
            (now >= usual * GROWN).then_some((hop, now, usual))
        });
    let above =
        |(hop, now, usual): &(&HopCounts, f64, f64)| (now - usual) * hop.counted.packets_in as f64;
    let (hop, now, usual) = grown.max_by(|a, b| above(a).total_cmp(&above(b)))?;
    let text = format!(
        "{}: {now:.0} ns a packet on average, usually {usual:.0} ns",
        hop.name
    );
    Some((hop.name.clone(), text))
}

fn stolen_share(context: &Context, core: Option<u32>) -> f64 {
    let cores = context.cores.iter();
    let matching = cores.filter(|load| core.is_none_or(|core| load.core == core));
    matching.map(|load| load.steal).fold(0.0, f64::max)
}

fn first_hop(context: &Context, worker: &WorkerLoad) -> String {
    worker
        .first_position
        .and_then(|position| hop_name(context, position))
        .unwrap_or_else(|| NOWHERE.to_owned())
}

fn hop_name(context: &Context, position: u8) -> Option<String> {
    let mut hops = context.hops.iter();
    let hop = hops.find(|hop| hop.position == position)?;
    Some(hop.name.clone())
}

fn unknown_cause(evidence: Vec<String>) -> Finding {
    Finding::new(SlaCause::Unknown, NOWHERE, evidence)
}

#[cfg(test)]
mod tests;
