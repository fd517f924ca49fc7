//! `myelin plan`: what would run where, and at what cost. Needs neither root nor an agent.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_agent::api::ApiError;
use myelin_planner::{Machine, Origin, Plan, PortKind};

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
    let chains = output::parse(&source)?;
    let costs = myelin_agent::load_costs()?;
    let plans = chains
        .iter()
        .map(|chain| myelin_planner::plan(chain, &costs, &machine(chain)).map_err(ApiError::usage))
        .collect::<Result<Vec<Plan>, ApiError>>()?;
    if arguments.json {
        output::json(&plans)?;
    } else {
        for plan in &plans {
            print(plan);
        }
    }
    let admitted = plans.iter().all(|plan| plan.admitted);
    Ok(if admitted {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(output::REFUSED)
    })
}

/// This machine, with the chain's own ports where it names some.
fn machine(chain: &myelin_spec::ServiceChain) -> Machine {
    let mut machine = Machine::with_end_hosts(myelin_agent::cores());
    if chain.is_over_dpdk() {
        machine.ingress = PortKind::Native;
        machine.egress = PortKind::Native;
    } else if let Some(ports) = &chain.ports {
        machine.ingress = myelin_agent::port_kind(&ports.ingress);
        machine.egress = myelin_agent::port_kind(&ports.egress);
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
    for warning in &plan.warnings {
        println!("warning: {warning}");
    }
    match &plan.refusal {
        Some(reason) => println!("refused: {reason}"),
        None => println!("admitted"),
    }
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
        [
            String::new(),
            name.to_owned(),
            String::new(),
            String::new(),
            String::new(),
            step.name.clone(),
            format!("{:.0}", step.cost_ns),
            String::new(),
            String::new(),
        ]
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
