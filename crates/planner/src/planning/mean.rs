//! Comparing a plan with the contract of its chain.

use myelin_spec::units::DURATION;
use myelin_spec::{Idle, Mapping, OnFailure, ServiceChain, Space, WorkerSpec};

use crate::costs::Costs;
use crate::plan::{Hop, Plan};

/// Share of a core above which the wait of a packet grows out of proportion (Xiang 2022, section 4.3, after Li et al.).
const BUSY: f64 = 0.8;

/// Fills in whether the plan is admitted, and what the user should know.
pub(super) fn judge(plan: &mut Plan, chain: &ServiceChain, costs: &Costs) {
    let wake_up_ns = wake_up_ns(plan, chain, costs);
    plan.refusal = refusal(plan);
    plan.admitted = plan.refusal.is_none();
    plan.worst_case_note = worst_case_note(wake_up_ns) + &left_out(plan);
    plan.warnings = [
        late_when_asleep(plan, wake_up_ns),
        overload(plan),
        worker_without_work(plan, chain),
        spinning_side_by_side(plan, chain),
        cores_that_never_sleep(chain),
        guards_passed_by(chain),
    ]
    .into_iter()
    .flatten()
    .chain(cautions(chain))
    .collect();
}

/// What waking the worker adds to a packet that finds it asleep, and each further process; nothing when they never sleep.
fn wake_up_ns(plan: &Plan, chain: &ServiceChain, costs: &Costs) -> Option<f64> {
    let sleeps = plan.uses(Space::User) && chain.worker.idle != Idle::Spin;
    let wake_ups = if plan.mapping == Mapping::Distributed {
        workers_hops(plan).count() as f64
    } else {
        f64::from(1 + plan.rings)
    };
    sleeps.then(|| wake_ups * costs.steps.wake_up.at_ns(plan.frame_bytes))
}

/// A mean above the agreed delay means that no load and no luck can make it hold.
pub(crate) fn refusal(plan: &Plan) -> Option<String> {
    let bounds = [
        ("latency", plan.sla.latency_ns),
        ("roundTrip", plan.sla.round_trip_ns),
    ];
    let (key, bound_ns) = bounds
        .into_iter()
        .filter_map(|(key, bound)| Some((key, bound?)))
        .find(|(_, bound)| plan.predicted_ns > *bound as f64)?;
    let most = plan.costliest().map_or_else(String::new, |hop| {
        format!(
            "; most of it, {}, is `{}` and the way to it",
            nanoseconds(hop.total_ns()),
            hop.name
        )
    });
    Some(format!(
        "the predicted cost of {} is above the agreed {key} of {}{most}",
        nanoseconds(plan.predicted_ns),
        DURATION.format(bound_ns),
    ))
}

/// Functions that guard something and are passed by when they fail.
fn guards_passed_by(chain: &ServiceChain) -> Option<String> {
    let guards: Vec<String> = chain
        .functions
        .iter()
        .filter(|function| function.kind().guards)
        .map(|function| format!("`{}`", function.name))
        .collect();
    (chain.on_failure == Some(OnFailure::Pass) && !guards.is_empty()).then(|| {
        format!(
            "with `onFailure: pass` packets pass by {} when the chain fails, unchecked or in clear; leave it out, and they are dropped",
            guards.join(", ")
        )
    })
}

/// What the user should know of functions as they are configured.
fn cautions(chain: &ServiceChain) -> impl Iterator<Item = String> {
    chain.functions.iter().filter_map(|function| {
        let caution = function.config.effect().caution?;
        Some(format!("`{}` {caution}", function.name))
    })
}

fn worst_case_note(wake_up_ns: Option<f64>) -> String {
    let wake_up = wake_up_ns.map_or_else(String::new, |ns| {
        format!(
            ", and about {} when the worker has to be woken",
            nanoseconds(ns)
        )
    });
    format!(
        "the prediction is a mean on an idle machine, not a bound: waiting in queues and for a core comes on top{wake_up}"
    )
}

/// What no prediction can contain.
fn left_out(plan: &Plan) -> String {
    let names: Vec<String> = plan
        .black_boxes()
        .map(|hop| format!("`{}`", hop.name))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "; what happens in {} is unknown (black box), and not in it",
        names.join(", ")
    )
}

fn late_when_asleep(plan: &Plan, wake_up_ns: Option<f64>) -> Option<String> {
    let (bound_ns, wake_up_ns) = (plan.sla.latency_ns?, wake_up_ns?);
    let late = plan.admitted && plan.predicted_ns + wake_up_ns > bound_ns as f64;
    late.then(|| {
        format!(
            "a packet that finds the worker asleep takes about {}, above the agreed latency of {}; write `worker: {{ idle: spin }}`",
            nanoseconds(plan.predicted_ns + wake_up_ns),
            DURATION.format(bound_ns),
        )
    })
}

/// The kernel's part of the chain, the worker's, and each stage of a pipeline run on a core each; none must be asked for more than one.
fn overload(plan: &Plan) -> Option<String> {
    let rate_pps = plan.sla.rate_pps.or_else(|| {
        let frame_bits = plan.frame_bytes * 8;
        plan.sla.rate_bps.map(|bps| bps / frame_bits)
    })?;
    let user_ns: f64 = {
        let hops = workers_hops(plan);
        let leaves = plan.mapping != Mapping::Distributed
            && plan.hops.last().is_some_and(|hop| hop.space == Space::User);
        hops.map(Hop::total_ns).sum::<f64>() + if leaves { plan.egress.cost_ns } else { 0.0 }
    };
    // What has a process of its own has a core of its own.
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

fn worker_without_work(plan: &Plan, chain: &ServiceChain) -> Option<String> {
    let idle = !plan.uses(Space::User) && chain.worker != WorkerSpec::default();
    idle.then(|| "`spec.worker` has no effect: no function runs in user space".to_owned())
}

/// What workers run.
fn workers_hops(plan: &Plan) -> impl Iterator<Item = &Hop> {
    let hops = plan.hops.iter();
    hops.filter(|hop| hop.space == Space::User && !hop.is_black_box())
}

/// The workers of a distributed chain have one core together.
fn spinning_side_by_side(plan: &Plan, chain: &ServiceChain) -> Option<String> {
    let count = workers_hops(plan).count();
    let spin = plan.mapping == Mapping::Distributed && count > 1 && chain.worker.idle == Idle::Spin;
    spin.then(|| {
        format!(
            "{count} workers spin on one core, each until the scheduler takes it from them, for milliseconds; \
             leave `worker: {{ idle: spin }}` out"
        )
    })
}

fn cores_that_never_sleep(chain: &ServiceChain) -> Option<String> {
    (chain.cpu_latency_ns? < 1000).then(|| {
        "`spec.cpuLatency` below 1 us: while the chain is up all cores of the machine poll for work instead of sleeping, \
         and take the power of busy ones"
            .to_owned()
    })
}

/// A time for people, to three digits or so.
fn nanoseconds(ns: f64) -> String {
    const US: f64 = 1e3;
    if ns < US {
        format!("{ns:.0} ns")
    } else {
        format!("{:.2} us", ns / US)
    }
}
