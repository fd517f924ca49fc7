//! `myelin plan`: what would run where, and at what cost. Needs neither root nor an agent.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::ApiError;
use myelin_planner::admission::{self, Ledger, Node, Site};
use myelin_planner::{Machine, Origin, Plan, PortKind, ServerShare};
use myelin_report::terminal::Column;

use crate::{output, source};

/// Arguments of `myelin plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin plan examples/tactile.yaml\n  myelin plan examples/mixed-order.yaml --json\n\n\
                  Costs are those that `myelin calibrate` measured here, else built-in ones; the output says which.\n\
                  Exit status 3: a chain would be refused."
)]
pub(crate) struct Arguments {
    /// The chain file; `-` reads standard input.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Plans every chain of the file.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let source = source::read(&arguments.file)?;
    let chains = source.parse()?;
    let costs = myelin_agent::load_costs()?;
    // Each beside those before it in the file; what runs already only the agent knows.
    let mut ledger = Ledger::default();
    let mut plans = Vec::with_capacity(chains.len());
    for chain in &chains {
        let machine = machine(chain);
        let mut plan = myelin_planner::plan(chain, &costs, &machine).map_err(ApiError::usage)?;
        let node = Node {
            costs: &costs,
            machine: &machine,
            ledger: &ledger,
        };
        let site = Site::planned(chain, &machine);
        let booking = admission::review(&mut plan, chain, &node, &site);
        ledger.insert(booking);
        plans.push(plan);
    }
    if arguments.json {
        output::json(&plans)?;
    } else {
        for plan in &plans {
            print(plan);
        }
    }
    let admitted = plans.iter().all(|plan| plan.admitted);
    Ok(output::status(admitted, output::REFUSED))
}

/// This machine, with the chain's own ports where it names some.
fn machine(chain: &myelin_spec::ServiceChain) -> Machine {
    let mut machine = Machine::with_end_hosts(myelin_linux::affinity::cores());
    if chain.is_over_dpdk() {
        machine.ingress = PortKind::Native;
        machine.egress = PortKind::Native;
    } else if let Some(ports) = &chain.ports {
        machine.ingress = myelin_agent::port_kind(&ports.ingress);
        machine.egress = myelin_agent::port_kind(&ports.egress);
        machine.egress_bps = myelin_agent::link_bps(&ports.egress);
        machine.ingress_mtu = myelin_agent::link_mtu(&ports.ingress);
    }
    machine
}

fn print(plan: &Plan) {
    println!(
        "chain {} (owner {}): mapping {}, hook {}, classified by {}, {} crossings, on failure {}",
        plan.chain,
        plan.owner,
        plan.mapping,
        plan.hook,
        plan.classify,
        plan.crossings,
        plan.on_failure
    );
    println!("mapping {}: {}", plan.mapping, plan.mapping_why);
    print_hops(plan);
    let origin = match &plan.costs_origin {
        Origin::Default => {
            "built-in costs, not measured here: `myelin calibrate` measures".to_owned()
        }
        Origin::Measured { machine, date } => format!("costs measured on {machine}, {date}"),
    };
    println!(
        "predicted {:.2} us a packet of {} bytes, of which {:.2} us for crossings ({origin})",
        plan.predicted_ns / 1e3,
        plan.frame_bytes,
        plan.crossings_cost_ns / 1e3
    );
    println!("{}", plan.worst_case_note);
    print_bound(plan);
    for warning in &plan.warnings {
        println!("warning: {warning}");
    }
    match &plan.refusal {
        Some(reason) => println!("refused: {reason}"),
        None => println!("admitted"),
    }
    for remedy in &plan.remedies {
        println!("would be admitted with {remedy}");
    }
}

/// The worst case, and what of it falls to whom.
pub(crate) fn print_bound(plan: &Plan) {
    if plan.best_effort {
        let reason = plan.refusal.as_deref().unwrap_or_default();
        println!("best effort, nothing is promised: {reason}");
    }
    let Some(bound) = &plan.bound else {
        if let Some(why) = &plan.no_bound {
            println!("no worst-case bound: {why}");
        }
        return;
    };
    let sum = bound.paper_sum_ns.map_or_else(String::new, |sum| {
        format!(" (the sum of b/g over the hops is {} us)", us(sum))
    });
    println!("worst case {} us{sum}, of which:", us(bound.bound_ns));
    let mut table = output::table(["hop or wait", ">at worst ns", ">share us"]);
    for hop in &bound.hops {
        table.add_row([hop.name.clone(), hop.cost_ns.to_string(), us(hop.share_ns)]);
    }
    table.add_row([
        "cores that stand still, wake-ups, turns".to_owned(),
        String::new(),
        us(bound.latency_ns),
    ]);
    println!("{table}");
    let servers: [Column<ServerShare>; 5] = [
        ("served by", |server| server.name.clone()),
        (">packets/s at worst", |server| {
            server.capacity_pps.to_string()
        }),
        (">promised", |server| {
            format!("{:.1} %", server.reserved_ppm as f64 / 1e4)
        }),
        (">wait us", |server| us(server.latency_ns)),
        (">delay us", |server| us(server.delay_ns)),
    ];
    println!("{}", output::listing(&servers, &bound.servers));
}

fn us(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

/// The hops of a plan as a table.
pub(crate) fn print_hops(plan: &Plan) {
    let mut table = output::table([
        ">#",
        "hop",
        "kind",
        "class",
        "space",
        "reached by",
        ">reach ns",
        ">own ns",
        "why",
    ]);
    let step = |name: &str, step: &myelin_planner::Step| {
        let cost = format!("{:.0}", step.cost_ns);
        ["", name, "", "", "", &step.name, &cost, "", ""].map(str::to_owned)
    };
    table.add_row(step("front door", &plan.door));
    for hop in &plan.hops {
        table.add_row([
            hop.position.to_string(),
            hop.name.clone(),
            hop.kind.clone(),
            hop.class.to_string(),
            hop.space.to_string(),
            hop.reach.name.clone(),
            format!("{:.0}", hop.reach.cost_ns),
            hop.cost_ns
                .map_or_else(|| "unknown".to_owned(), |ns| format!("{ns:.0}")),
            hop.why.clone(),
        ]);
    }
    table.add_row(step("egress", &plan.egress));
    println!("{table}");
}
