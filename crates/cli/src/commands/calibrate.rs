//! `myelin calibrate`: measures the costs of this machine and keeps them.

use std::path::PathBuf;
use std::process::ExitCode;

use myelin_api::{
    ApiError, CalibrateRequest, ChainSource, Client, Event, RunDir, calibration_file,
};
use myelin_planner::{Cost, Costs, Stall};
use myelin_report::terminal::Column;
use myelin_spec::FunctionSpec;

use crate::output::{self, Progress};
use crate::source;

/// Arguments of `myelin calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sudo myelin calibrate            half a minute\n  \
                  sudo myelin calibrate --quick -v  with each cost\n  \
                  sudo myelin calibrate FILE       the black boxes of a chain file\n\n\
                  Measures the costs of functions (BPF_PROG_TEST_RUN, worker loop) and of changes between\n\
                  kernel and user space (probes over emulated end hosts). `plan` and admission read them from\n\
                  /var/lib/myelin/calibration.json, or from the file in MYELIN_CALIBRATION."
)]
pub(crate) struct Arguments {
    /// Measure only the black boxes (`kind: external`) of this chain file, each alone on its core.
    file: Option<PathBuf>,
    /// Fewer rounds: seconds instead of about half a minute.
    #[arg(long)]
    quick: bool,
    /// Show more: the cost of each step and function.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures and prints the costs.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let black_boxes = arguments.file.as_deref().map(source::read).transpose()?;
    let own_boxes = black_boxes.as_ref().map(find_boxes).transpose()?;
    let client = Client::connect_or_start(run_dir, &output::program_path()?)?;
    let request = CalibrateRequest {
        quick: arguments.quick,
        // The agent's environment may differ from that of this client.
        file: calibration_file().display().to_string(),
        black_boxes,
    };
    let mut progress = Progress::new();
    let mut costs = None;
    let outcome = client.calibrate(&request, &mut |event| {
        if let Some(Event::Costs(measured)) = progress.show_progress(event) {
            costs = Some(*measured);
        }
    });
    progress.finish();
    outcome?;
    let costs = costs.ok_or_else(|| ApiError::failed("the agent sent no costs"))?;
    if arguments.json {
        output::print_json(&costs)?;
    } else if let Some(own_boxes) = own_boxes {
        println!("{}", format_box_costs(&costs, &own_boxes));
        return Ok(ExitCode::SUCCESS);
    } else {
        println!("{}", format_summary(&costs, &request.file));
        if arguments.verbose {
            println!("\n{}", format_packet_costs(&costs));
        }
    }
    for warning in costs.warnings() {
        output::warn(&warning);
    }
    Ok(ExitCode::SUCCESS)
}

/// The name and the command of each black box of a file.
fn find_boxes(source: &ChainSource) -> Result<Vec<(String, String)>, ApiError> {
    let objects = source.parse_objects()?;
    let functions = objects.chains.iter().flat_map(|chain| &chain.functions);
    let command = |function: &FunctionSpec| {
        let config = function.config.own_core()?;
        Some((function.name.clone(), config.command_text()))
    };
    Ok(functions.filter_map(command).collect())
}

/// Formats the cost of a packet in each black box.
fn format_box_costs(costs: &Costs, boxes: &[(String, String)]) -> String {
    let mut table = output::new_table(["black box", ">ns a packet", ">ns a byte"]);
    for (name, command) in boxes {
        if let Some(cost) = costs.black_boxes.get(command) {
            table.add_row([
                name.clone(),
                format!("{:.1}", cost.per_packet_ns),
                format!("{:.4}", cost.per_byte_ns),
            ]);
        }
    }
    table.trim_fmt()
}

/// Formats the name of the cost file, the figures that bound a delay, and the stalls of the cores.
fn format_summary(costs: &Costs, file: &str) -> String {
    let lines = [
        format!(
            "calibrated: {file} has the costs of {} function kinds for `plan` and admission",
            costs.functions.len()
        ),
        format!(
            "worst case: a packet costs {:.2} times its mean",
            costs.worst_case
        ),
        format!(
            "scheduler: a process keeps a core for up to {:.1} ms while others wait ({})",
            costs.slice_ns as f64 / 1e6,
            costs.slice_from
        ),
        String::new(),
        format_core_stalls(costs),
    ];
    lines.map(|line| output::wrap(&line)).join("\n")
}

/// Formats the cost of a packet, a row for each step or function.
fn format_packet_costs(costs: &Costs) -> String {
    let mut table = output::new_table(["step or function", ">ns a packet", ">ns a byte"]);
    let mut add = |name: &str, cost: Cost| {
        table.add_row([
            name.to_owned(),
            format!("{:.1}", cost.per_packet_ns),
            format!("{:.4}", cost.per_byte_ns),
        ]);
    };
    for (name, cost) in costs.steps.iter() {
        add(name, cost);
    }
    if let Some(in_burst) = costs.in_burst {
        add("in a burst, in the kernel", in_burst.kernel);
        add("in a burst, port", in_burst.port);
        add("in a burst, worker", in_burst.worker);
        add("in a crowd, function (kernel)", in_burst.kernel_function);
        add("in a crowd, function (user)", in_burst.user_function);
    }
    for (kind, cost) in &costs.functions {
        for (space, cost) in [("kernel", cost.kernel), ("user", cost.user)] {
            if let Some(cost) = cost {
                add(&format!("{kind} ({space})"), cost);
            }
        }
    }
    table.trim_fmt()
}

/// Formats the stalls of each core.
fn format_core_stalls(costs: &Costs) -> String {
    let columns: [Column<(&u32, &Stall)>; 6] = [
        (">core", |(core, _)| core.to_string()),
        (">stall us", |(_, stall)| format_us(stall.stall_ns)),
        (">longest stall us", |(_, stall)| {
            format_us(stall.longest_ns)
        }),
        (">gaps", |(_, stall)| stall.gaps.to_string()),
        (">steal", |(_, stall)| {
            format!("{:.1} %", stall.steal_percent)
        }),
        (">other programs", |(_, stall)| {
            format!("{:.1} %", stall.others_percent)
        }),
    ];
    output::format_table(&columns, &costs.stalls.iter().collect::<Vec<_>>())
}

fn format_us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use myelin_planner::FunctionCosts;
    use myelin_planner::costs::InBurst;

    use super::*;

    #[test]
    fn the_tables_show_every_measured_cost() {
        let mut costs = Costs {
            in_burst: Some(InBurst {
                kernel: Cost::new(101.0, 0.5),
                port: Cost::new(102.0, 0.25),
                worker: Cost::new(103.0, 0.0),
                kernel_function: Cost::new(106.0, 0.0),
                user_function: Cost::new(107.0, 0.0),
            }),
            ..Costs::default()
        };
        costs.functions.clear();
        let both = FunctionCosts {
            kernel: Some(Cost::new(104.0, 0.0)),
            user: Some(Cost::new(105.0, 0.0)),
        };
        costs.functions.insert("xor".to_owned(), both);
        let text = format_packet_costs(&costs);
        for row in [
            ["in a burst, in the kernel", "101.0", "0.5000"],
            ["in a crowd, function (kernel)", "106.0", "0.0000"],
            ["in a crowd, function (user)", "107.0", "0.0000"],
            ["in a burst, port", "102.0", "0.2500"],
            ["in a burst, worker", "103.0", "0.0000"],
            ["xor (kernel)", "104.0", "0.0000"],
            ["xor (user)", "105.0", "0.0000"],
        ] {
            let is_row = |line: &str| row.iter().all(|cell| line.contains(cell));
            assert_eq!(
                text.lines().filter(|line| is_row(line)).count(),
                1,
                "{row:?} in {text}"
            );
        }
        for (name, _) in costs.steps.iter() {
            assert!(text.contains(name), "{name} in {text}");
        }
        let stall = Stall {
            stall_ns: 12_340,
            gaps: 56,
            longest_ns: 78_900,
            steal_percent: 1.25,
            others_percent: 3.5,
            ..Stall::default()
        };
        costs.stalls.insert(7, stall);
        let text = format_core_stalls(&costs);
        let row = text.lines().find(|line| line.contains("12.3"));
        let cells: Vec<&str> = row
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        assert_eq!(cells, ["7", "12.3", "78.9", "56", "1.2 %", "3.5 %"]);
    }
}
