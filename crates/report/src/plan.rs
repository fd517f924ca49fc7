//! Plans and deployed chains as text: the verdict, the contract, the worst case, each function.

use std::fmt::Write as _;

use myelin_api::units::DURATION;
use myelin_api::{
    BlackBoxSharing, ChainUp, Change, Origin, PartPlan, Placement, Plan, SharingMechanism,
    SharingPlan, SlaContract,
};

use crate::sla;
use crate::terminal::{self, add_field, grid, or_dash, wrap};

/// Formats the change of a chain, its contract, and the next commands. With `is_one_of_many`,
/// commands for hosts name the chain.
pub fn deployment_summary(up: &ChainUp, is_one_of_many: bool, width: u16) -> String {
    let plan = &up.plan;
    let host = |role: &str, port: &str| {
        let host = up.hosts.iter().find(|host| host.role == role);
        host.map_or_else(
            || port.to_owned(),
            |host| format!("{role} {}", host.address),
        )
    };
    let change = match up.change {
        Change::Created => "up".to_owned(),
        Change::Changed => format!(
            "changed to generation {} in {:.1} ms",
            up.generation,
            up.exchange_ms.unwrap_or_default()
        ),
        Change::Unchanged => format!("unchanged, generation {}", up.generation),
    };
    let mut out = format!(
        "chain {} is {change}: {} -> {}, mapping {}\n",
        up.chain,
        host("client", &up.ingress),
        host("server", &up.egress),
        plan.mapping
    );
    if plan.best_effort {
        let reason = plan.refusal.as_deref().unwrap_or_default();
        add_field(
            &mut out,
            "best effort",
            &format!("no promise: {reason}"),
            width,
        );
    }
    add_promise(&mut out, plan, width);
    let (chain, slash) = if is_one_of_many {
        (&*up.chain, "/")
    } else {
        ("", "")
    };
    for host in &up.hosts {
        let reach = format!("myelin exec {chain}{slash}{} -- COMMAND", host.role);
        add_field(&mut out, &host.role, &reach, width);
    }
    // A probe sends from end hosts.
    let measure = if up.hosts.is_empty() {
        "top".to_owned()
    } else {
        format!("probe {}", up.chain)
    };
    let next = format!("myelin ps {0}; myelin {measure}; myelin down {0}", up.chain);
    add_field(&mut out, "next", &next, width);
    out
}

/// Formats the node of each function, and the worst case of a placement.
pub fn placement(placed: &Placement, width: u16) -> String {
    const US: f64 = 1e3;
    let mut out = String::new();
    let text = format!(
        "{}, {} crossings, worst case {:.1} us, of which links {:.1} us",
        placed.algorithm,
        placed.crossings,
        placed.delay_ns as f64 / US,
        placed.links_ns as f64 / US,
    );
    add_field(&mut out, "placement", &text, width);
    for function in &placed.functions {
        let text = format!("{}: {}", function.node, function.why);
        add_field(&mut out, &function.name, &text, width);
    }
    out
}

/// Formats the details of a deployment: ports, times and the plan.
pub fn deployment_details(up: &ChainUp, width: u16) -> String {
    let mut out = String::new();
    let text = format!("{} -> {}, SPI {}", up.ingress, up.egress, up.spi);
    add_field(&mut out, "ports", &text, width);
    add_field(
        &mut out,
        "took",
        &format!("{:.1} ms", up.rendering_ms),
        width,
    );
    for host in &up.hosts {
        let text = format!("network namespace {}", host.netns);
        add_field(&mut out, &host.role, &text, width);
    }
    let _ = writeln!(out, "{}", functions_table(&up.plan, width));
    out + &details(&up.plan, width)
}

/// Says whether admission accepts the chain, with the reason of a refusal.
pub fn verdict(plan: &Plan, width: u16) -> String {
    let verdict = match &plan.refusal {
        Some(reason) => format!("chain {} is refused: {reason}", plan.chain),
        None => format!("chain {} is admitted", plan.chain),
    };
    wrap(&verdict, 2, width)
}

/// Formats the verdict, the contract, the worst case, and each function's share of the worst case.
pub fn summary(plan: &Plan, width: u16) -> String {
    let mut out = verdict(plan, width) + "\n";
    if !plan.remedies.is_empty() {
        add_field(&mut out, "remedy", &plan.remedies.join("; or "), width);
    }
    add_promise(&mut out, plan, width);
    let layout = format!(
        "{}, hook {}, {} changes between kernel and user space",
        plan.mapping, plan.hook, plan.crossings
    );
    add_field(&mut out, "mapping", &layout, width);
    if let (Some(sharing), Some(worker)) = (&plan.sharing, &plan.worker) {
        let who = if sharing.mechanism == SharingMechanism::Auto {
            format!("its workers hand it over by `{}`", sharing.policy)
        } else {
            describe_turns("the worker", sharing)
        };
        let text = format!("core {}, {who}; {}", worker.core, longest_turn(sharing));
        add_field(&mut out, "sharing", &text, width);
    }
    for BlackBoxSharing {
        function,
        core,
        cost_ns,
        turns,
    } in &plan.black_box_sharing
    {
        let who = describe_turns(&format!("`{function}`"), turns);
        let cost = cost_ns.map_or(String::new(), |ns| {
            format!("; a packet took {ns:.0} ns alone on the core")
        });
        let text = format!("core {core}, {who}; {}{cost}", longest_turn(turns));
        add_field(&mut out, "sharing", &text, width);
    }
    if let Some(part) = &plan.part {
        add_field(&mut out, "part", &describe_part(plan, part), width);
    }
    for warning in &plan.warnings {
        add_field(&mut out, "warning", warning, width);
    }
    let _ = writeln!(out, "{}", functions_table(plan, width));
    out
}

/// Describes the turns that a preemptor gives.
fn describe_turns(who: &str, sharing: &SharingPlan) -> String {
    let (policy, mechanism) = (sharing.policy, sharing.mechanism);
    format!("{who} gets turns by `{policy}`, mechanism `{mechanism}`")
}

fn longest_turn(sharing: &SharingPlan) -> String {
    let turn = sharing.longest_turn_ns;
    let turn = turn.map_or(String::new(), |ns| format!("{} us, ", format_us(ns)));
    format!("longest turn {turn}{}", sharing.why)
}

/// Says which functions of the whole chain the part has, and which packets pass its wires.
fn describe_part(plan: &Plan, part: &PartPlan) -> String {
    let (first, count) = (usize::from(part.first), plan.hops.len());
    let mut text = format!(
        "path {}, functions {} to {} of {}",
        part.path,
        first + 1,
        first + count,
        part.length
    );
    for (mtu, way) in [
        (part.from_mtu, "from the previous"),
        (part.to_mtu, "to the next"),
    ] {
        if let Some(mtu) = mtu {
            let _ = write!(text, "; packets of up to {mtu} B {way} node");
        }
    }
    text
}

/// Adds the contract, and the worst case as a share of the contract's latency.
fn add_promise(out: &mut String, plan: &Plan, width: u16) {
    let contract = SlaContract::from(&plan.sla);
    add_field(out, "owed", &sla::format_terms(&contract), width);
    if let Some(wait_ns) = plan.sla.excess_queue_ns {
        let text = format!(
            "waits for up to {}, in the worst case; the policer drops the rest",
            DURATION.format(wait_ns)
        );
        add_field(out, "excess", &text, width);
    }
    let worst = match (&plan.bound, plan.sla.latency_ns, &plan.no_bound) {
        (Some(bound), Some(owed_ns), _) => format!(
            "{} us, {:.0} % of the latency owed",
            format_us(bound.bound_ns),
            percent(bound.bound_ns, owed_ns)
        ),
        (Some(bound), None, _) => format!("{} us", format_us(bound.bound_ns)),
        (None, _, Some(why)) => format!("not bounded: {why}"),
        (None, _, None) => return,
    };
    add_field(out, "worst case", &worst, width);
}

/// Formats a row for each step of a packet: space, cost, and share of the worst case.
fn functions_table(plan: &Plan, width: u16) -> String {
    let bound = plan.bound.as_ref();
    let share = |name: &str| {
        let hop = bound?.hops.iter().find(|hop| hop.name == name)?;
        Some(hop.share_ns)
    };
    let cells = |share_ns: Option<u64>| {
        let of_bound = share_ns
            .zip(bound)
            .map(|(ns, bound)| percent(ns, bound.bound_ns));
        [
            or_dash(share_ns.map(format_us)),
            terminal::digits_or_dash(0, of_bound),
        ]
    };
    let mut table = grid(
        [
            "function",
            "kind",
            "space",
            ">cost ns",
            ">worst case us",
            ">%",
        ],
        width,
    );
    let mut add = |name: &str, kind: &str, space: &str, cost: String, share_ns| {
        let [worst, of_bound] = cells(share_ns);
        table.add_row([name, kind, space, &cost, &worst, &of_bound]);
    };
    let ns = |ns: f64| format!("{ns:.0}");
    add(
        "front door",
        "",
        "",
        ns(plan.door.cost_ns),
        share("front door"),
    );
    for hop in &plan.hops {
        let cost = hop
            .cost_ns
            .map_or_else(|| "unknown".to_owned(), |_| ns(hop.total_ns()));
        add(
            &hop.name,
            &hop.kind,
            &hop.space.to_string(),
            cost,
            share(&hop.name),
        );
    }
    add("egress", "", "", ns(plan.egress.cost_ns), share("egress"));
    if let Some(ns) = share("egress link") {
        add("egress link", "", "", "-".to_owned(), Some(ns));
    }
    if let Some(bound) = bound {
        let waits = "waits for cores and turns";
        add(waits, "", "", "-".to_owned(), Some(bound.latency_ns));
    }
    let whole = bound.map(|bound| bound.bound_ns);
    add("sum", "", "", ns(plan.predicted_ns), whole);
    table.trim_fmt()
}

/// Formats the reasons of the plan: places, steps, servers and the source of the costs.
pub fn details(plan: &Plan, width: u16) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: &str| add_field(&mut out, label, text, width);
    line("owner", &plan.owner);
    line("on failure", &plan.on_failure.to_string());
    line("classified", &format!("by {}", plan.classify));
    line("mapping", &plan.mapping_why);
    let origin = match &plan.costs_origin {
        Origin::Default => {
            "built-in costs, not measured here: `myelin calibrate` measures".to_owned()
        }
        Origin::Measured { machine, date } => format!("costs measured on {machine}, {date}"),
    };
    let cost = format!(
        "{:.2} us a packet of {} bytes, of which {:.2} us for changes of space ({origin})",
        plan.predicted_ns / 1e3,
        plan.frame_bytes,
        plan.crossings_cost_ns / 1e3
    );
    line("predicted", &cost);
    line("note", &plan.worst_case_note);
    let _ = writeln!(out, "{}", steps_table(plan, width));
    let Some(bound) = &plan.bound else {
        return out;
    };
    if let Some(sum) = bound.paper_sum_ns {
        let text = format!(
            "{} us, the sum of b/g over the hops (Rathore et al., 2022)",
            format_us(sum)
        );
        add_field(&mut out, "the paper's", &text, width);
    }
    let mut costs = grid(["function", ">cost at worst ns"], width);
    costs.add_rows(
        bound
            .hops
            .iter()
            .map(|hop| [hop.name.clone(), hop.cost_ns.to_string()]),
    );
    let heads = [
        "served by",
        ">packets/s at worst",
        ">promised",
        ">wait us",
        ">delay us",
    ];
    let mut servers = grid(heads, width);
    servers.add_rows(bound.servers.iter().map(|server| {
        [
            server.name.clone(),
            server.capacity_pps.to_string(),
            format!("{:.1} %", server.reserved_ppm as f64 / 1e4),
            format_us(server.latency_ns),
            format_us(server.delay_ns),
        ]
    }));
    let _ = writeln!(out, "{}\n{}", costs.trim_fmt(), servers.trim_fmt());
    out
}

/// Formats a row for each function: the step that reaches it, the costs, the reason for its space.
fn steps_table(plan: &Plan, width: u16) -> String {
    let mut table = grid(
        [
            ">#",
            "function",
            "class",
            "reached by",
            ">reach ns",
            ">own ns",
            "why",
        ],
        width,
    );
    let step = |name: &str, step: &str, cost_ns: f64| {
        ["", name, "", step, &format!("{cost_ns:.0}"), "", ""].map(str::to_owned)
    };
    table.add_row(step("front door", &plan.door.name, plan.door.cost_ns));
    for hop in &plan.hops {
        table.add_row([
            hop.position.to_string(),
            hop.name.clone(),
            hop.class.to_string(),
            hop.reach.name.clone(),
            format!("{:.0}", hop.reach.cost_ns),
            hop.cost_ns
                .map_or_else(|| "unknown".to_owned(), |ns| format!("{ns:.0}")),
            hop.why.clone(),
        ]);
    }
    table.add_row(step("egress", &plan.egress.name, plan.egress.cost_ns));
    table.trim_fmt()
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn format_us(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}
