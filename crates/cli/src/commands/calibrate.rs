//! `myelin calibrate`: measure this machine's costs and keep them.

use std::process::ExitCode;

use myelin_agent::api::{ApiError, CalibrateRequest, Event};
use myelin_agent::{Client, RunDir, calibration_file};

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
    let mut table = output::table(["step or function", ">ns a packet", ">ns a byte"]);
    let mut add = |name: &str, cost: myelin_planner::Cost| {
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
    println!("{table}");
    let mut table = output::table([
        ">core",
        ">stands still us",
        ">longest us",
        ">gaps",
        ">steal",
        ">other programs",
    ]);
    for (core, stall) in &costs.stalls {
        table.add_row([
            core.to_string(),
            format!("{:.1}", stall.stall_ns as f64 / 1e3),
            format!("{:.1}", stall.longest_ns as f64 / 1e3),
            stall.gaps.to_string(),
            format!("{:.1} %", stall.steal_percent),
            format!("{:.1} %", stall.others_percent),
        ]);
    }
    println!(
        "{table}\npackets at worst cost {:.2} times the mean\na process keeps a core that others want for up to {:.1} ms ({})\nkept in {}",
        costs.worst_case,
        costs.slice_ns as f64 / 1e6,
        costs.slice_from,
        request.file
    );
    Ok(ExitCode::SUCCESS)
}
