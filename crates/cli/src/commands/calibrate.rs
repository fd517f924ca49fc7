//! `myelin calibrate`: measure this machine's costs and keep them.

use std::process::ExitCode;

use myelin_api::{ApiError, CalibrateRequest, Client, Event, RunDir, calibration_file};
use myelin_planner::{Cost, Costs, Stall};
use myelin_report::terminal::Column;

use crate::output::{self, Progress};

/// Arguments of `myelin calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Measures function costs (BPF_PROG_TEST_RUN, worker loop) and crossings (echo probes over emulated end\n\
                  hosts), and keeps them in /var/lib/myelin/calibration.json (MYELIN_CALIBRATION moves it) for `plan`."
)]
pub(crate) struct Arguments {
    /// Fewer rounds: seconds instead of about half a minute.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let client = Client::connect_or_start(run_dir, &output::program()?)?;
    let request = CalibrateRequest {
        quick: arguments.quick,
        // The agent may have been started with another environment than this client.
        file: calibration_file().display().to_string(),
    };
    let mut progress = Progress::new();
    let mut costs = None;
    let outcome = client.calibrate(&request, &mut |event| {
        if let Some(Event::Costs(measured)) = progress.take(event) {
            costs = Some(*measured);
        }
    });
    progress.finish();
    outcome?;
    let costs = costs.ok_or_else(|| ApiError::failed("the agent sent no costs"))?;
    for warning in costs.warnings() {
        eprintln!("warning: {warning}");
    }
    if arguments.json {
        return output::json(&costs);
    }
    println!("{}\n{}", of_packets(&costs), of_cores(&costs));
    println!(
        "packets at worst cost {:.2} times the mean\na process keeps a core that others want for up to {:.1} ms ({})\nkept in {}",
        costs.worst_case,
        costs.slice_ns as f64 / 1e6,
        costs.slice_from,
        request.file
    );
    Ok(ExitCode::SUCCESS)
}

/// What packets cost, a row a step or function.
fn of_packets(costs: &Costs) -> String {
    let mut table = output::table(["step or function", ">ns a packet", ">ns a byte"]);
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

/// For how long each core stands still.
fn of_cores(costs: &Costs) -> String {
    let columns: [Column<(&u32, &Stall)>; 6] = [
        (">core", |(core, _)| core.to_string()),
        (">stands still us", |(_, stall)| us(stall.stall_ns)),
        (">longest us", |(_, stall)| us(stall.longest_ns)),
        (">gaps", |(_, stall)| stall.gaps.to_string()),
        (">steal", |(_, stall)| {
            format!("{:.1} %", stall.steal_percent)
        }),
        (">other programs", |(_, stall)| {
            format!("{:.1} %", stall.others_percent)
        }),
    ];
    output::listing(&columns, &costs.stalls.iter().collect::<Vec<_>>())
}

fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use myelin_planner::FunctionCosts;
    use myelin_planner::costs::InBurst;

    use super::*;

    #[test]
    fn everything_that_was_measured_is_told() {
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
        let told = of_packets(&costs);
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
                told.lines().filter(|line| is_row(line)).count(),
                1,
                "{row:?} in {told}"
            );
        }
        for (name, _) in costs.steps.iter() {
            assert!(told.contains(name), "{name} in {told}");
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
        let told = of_cores(&costs);
        let row = told.lines().find(|line| line.contains("12.3"));
        let cells: Vec<&str> = row
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        assert_eq!(cells, ["7", "12.3", "78.9", "56", "1.2 %", "3.5 %"]);
    }
}
