//! Compares the predicted mean cost of a plan with the contract.

use myelin_packet::{FiveTuple, FragmentHandling};
use myelin_spec::units::DURATION;
use myelin_spec::{Idle, Mapping, OnFailure, ServiceChain, Space, WorkerSpec};

use super::policed_tcp;
use crate::costs::Costs;
use crate::plan::{Hop, Plan};

/// Share of a core above which waiting times grow fast (Xiang 2022, section 4.3, after Li et al.).
const BUSY: f64 = 0.8;

/// Sets the plan's verdict by the mean cost, and the plan's warnings.
pub(super) fn compare_with_contract(plan: &mut Plan, chain: &ServiceChain, costs: &Costs) {
    let wake_up_ns = wake_up_ns(plan, chain, costs);
    plan.refusal = refusal(plan);
    plan.admitted = plan.refusal.is_none();
    plan.worst_case_note = worst_case_note(wake_up_ns) + &black_box_note(plan);
    plan.warnings = [
        warn_late_wake_up(plan, wake_up_ns),
        warn_overload(plan),
        warn_unused_worker(plan, chain),
        warn_spinning_workers(plan, chain),
        warn_cpu_latency(chain),
        warn_bypassed_guards(chain),
        policed_tcp::warn(chain),
        warn_bypassing_fragments(chain),
    ]
    .into_iter()
    .flatten()
    .chain(configuration_warnings(chain))
    .collect();
}

/// Returns the wake-up time of all sleeping workers on a packet's path, ns; `None` if the workers
/// never sleep.
fn wake_up_ns(plan: &Plan, chain: &ServiceChain, costs: &Costs) -> Option<f64> {
    let sleeps = plan.uses(Space::User) && chain.worker.idle != Idle::Spin;
    let wake_ups = if plan.mapping == Mapping::Distributed {
        user_hops(plan).count() as f64
    } else {
        f64::from(1 + plan.rings)
    };
    sleeps.then(|| wake_ups * costs.steps.wake_up.at_ns(plan.frame_bytes))
}

/// Returns the refusal of a mean above the agreed delay, with which the chain would miss its
/// contract at any load.
pub(crate) fn refusal(plan: &Plan) -> Option<String> {
    let limits = [
        ("latency", plan.sla.latency_ns),
        ("roundTrip", plan.sla.round_trip_ns),
    ];
    let (key, limit_ns) = limits
        .into_iter()
        .filter_map(|(key, limit_ns)| Some((key, limit_ns?)))
        .find(|(_, limit_ns)| plan.predicted_ns > *limit_ns as f64)?;
    let largest_part = plan.costliest().map_or_else(String::new, |hop| {
        format!(
            "; the largest part is `{}` with the step to it, {}",
            hop.name,
            nanoseconds(hop.total_ns())
        )
    });
    Some(format!(
        "the predicted cost of {} is above the agreed {key} of {}{largest_part}",
        nanoseconds(plan.predicted_ns),
        DURATION.format(limit_ns),
    ))
}

/// Returns the names of the guarding functions.
fn list_guards(chain: &ServiceChain) -> Vec<String> {
    let functions = chain.functions.iter();
    functions
        .filter(|function| function.kind().fails_closed)
        .map(|function| format!("`{}`", function.name))
        .collect()
}

/// Warns of guarding functions that fragments bypass.
fn warn_bypassing_fragments(chain: &ServiceChain) -> Option<String> {
    let guards = list_guards(chain);
    let passes = chain.matches.names_ports() && chain.matches.fragments == FragmentHandling::Pass;
    (passes && !guards.is_empty()).then(|| {
        format!(
            "with `fragments: pass` IP fragments bypass {}, because the match names a port; remove \
             `fragments` to let them follow their first fragment",
            guards.join(", ")
        )
    })
}

/// Warns of guarding functions that `onFailure: pass` bypasses.
fn warn_bypassed_guards(chain: &ServiceChain) -> Option<String> {
    let guards = list_guards(chain);
    (chain.on_failure == Some(OnFailure::Pass) && !guards.is_empty()).then(|| {
        format!(
            "with `onFailure: pass` packets bypass {} when the chain fails, unchecked or in clear text; \
             remove `onFailure` to drop them",
            guards.join(", ")
        )
    })
}

/// Returns warnings about the configurations of functions.
fn configuration_warnings(chain: &ServiceChain) -> impl Iterator<Item = String> {
    chain.functions.iter().flat_map(|function| {
        let effect = function.config.effect();
        let enters = |(packet, _): &(FiveTuple, String)| chain.matches.matches(packet);
        let needed = effect.needed_drops.into_iter().filter(enters);
        let needed = needed.map(|(_, warning)| warning);
        let warnings = effect.caution.into_iter().chain(needed);
        let named = warnings.map(|warning| format!("`{}` {warning}", function.name));
        named.collect::<Vec<_>>()
    })
}

fn worst_case_note(wake_up_ns: Option<f64>) -> String {
    let wake_up = wake_up_ns.map_or_else(String::new, |ns| {
        format!(
            ", and about {} for a wake-up of the worker",
            nanoseconds(ns)
        )
    });
    format!(
        "the prediction is a mean on an idle machine, not a bound: it excludes the waiting time in queues and \
         for cores{wake_up}"
    )
}

/// Names the black boxes, whose delay the prediction excludes.
fn black_box_note(plan: &Plan) -> String {
    let names: Vec<String> = plan
        .black_boxes()
        .map(|hop| format!("`{}`", hop.name))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "; it excludes the unknown delay in {} (black box)",
        names.join(", ")
    )
}

fn warn_late_wake_up(plan: &Plan, wake_up_ns: Option<f64>) -> Option<String> {
    let (latency_ns, wake_up_ns) = (plan.sla.latency_ns?, wake_up_ns?);
    let late = plan.admitted && plan.predicted_ns + wake_up_ns > latency_ns as f64;
    late.then(|| {
        format!(
            "a packet that wakes the worker takes about {}, above the agreed latency of {}; \
             write `worker: {{ idle: spin }}`",
            nanoseconds(plan.predicted_ns + wake_up_ns),
            DURATION.format(latency_ns),
        )
    })
}

/// Warns of an overloaded core. The kernel part of a chain, its worker, and each stage of a
/// pipeline run on different cores.
fn warn_overload(plan: &Plan) -> Option<String> {
    let rate_pps = plan.sla.rate_pps.or_else(|| {
        let frame_bits = plan.frame_bytes * 8;
        plan.sla.rate_bps.map(|bps| bps / frame_bits)
    })?;
    let user_ns: f64 = {
        let hops = user_hops(plan);
        let leaves = plan.mapping != Mapping::Distributed
            && plan.hops.last().is_some_and(|hop| hop.space == Space::User);
        hops.map(Hop::total_ns).sum::<f64>() + if leaves { plan.egress.cost_ns } else { 0.0 }
    };
    // A function with its own process has its own core.
    let own = plan.hops.iter().filter(|hop| {
        let parts = &hop.reach.parts;
        plan.own_processes > 0 && parts.windows(2).any(|two| *two == ["ring", "dispatch"])
    });
    let own_ns: Vec<f64> = own.map(Hop::total_ns).collect();
    let parts = [
        ("worker", user_ns - own_ns.iter().sum::<f64>()),
        ("kernel part", plan.predicted_ns - user_ns),
        ("busiest stage", own_ns.into_iter().fold(0.0, f64::max)),
    ];
    let (part, busiest_ns) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let share = busiest_ns * 1e-9 * rate_pps as f64;
    (share > BUSY).then(|| {
        format!(
            "at {rate_pps} packets/s the {part} of the chain keeps a core {:.0} % busy; above {:.0} % delay and loss grow quickly",
            share * 100.0,
            BUSY * 100.0
        )
    })
}

fn warn_unused_worker(plan: &Plan, chain: &ServiceChain) -> Option<String> {
    let idle = !plan.uses(Space::User) && chain.worker != WorkerSpec::default();
    idle.then(|| "`spec.worker` has no effect: no function runs in user space".to_owned())
}

/// The hops that workers run.
fn user_hops(plan: &Plan) -> impl Iterator<Item = &Hop> {
    let hops = plan.hops.iter();
    hops.filter(|hop| hop.space == Space::User && !hop.is_black_box())
}

/// Warns of several spinning workers in a distributed chain, because they share one core.
fn warn_spinning_workers(plan: &Plan, chain: &ServiceChain) -> Option<String> {
    let count = user_hops(plan).count();
    let spin = plan.mapping == Mapping::Distributed && count > 1 && chain.worker.idle == Idle::Spin;
    spin.then(|| {
        format!(
            "{count} workers spin on one core, each for a scheduler slice of milliseconds; \
             remove `worker: {{ idle: spin }}`"
        )
    })
}

fn warn_cpu_latency(chain: &ServiceChain) -> Option<String> {
    (chain.cpu_latency_ns? < 1000).then(|| {
        "`spec.cpuLatency` below 1 us: while the chain is up, all cores of the machine poll and use \
         the power of busy cores"
            .to_owned()
    })
}

/// Formats a time with about three digits.
fn nanoseconds(ns: f64) -> String {
    const US: f64 = 1e3;
    if ns < US {
        format!("{ns:.0} ns")
    } else {
        format!("{:.2} us", ns / US)
    }
}
