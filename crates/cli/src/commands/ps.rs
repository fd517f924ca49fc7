//! `myelin ps`: the running chains.

use std::process::ExitCode;

use myelin_api::{
    ApiError, BlackBoxStatus, ChainState, ChainStatus, Client, FlowState, FlowStatus, RunDir,
    SandboxStatus, ShaperStatus, SojournStatus,
};

use crate::{output, sla};

/// Arguments of `myelin ps`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  myelin ps\n  myelin ps tactile      each function of one chain, and its contract against what was measured\n  myelin ps tactile --seconds 10   its last ten seconds; 300 are kept\n  myelin ps --flows      the flows that monitors and the like know\n  myelin ps --json"
)]
pub(crate) struct Arguments {
    /// Show each function of this chain.
    chain: Option<String>,
    /// Show the flows that functions know, of all chains or of this one.
    #[arg(long)]
    flows: bool,
    /// Show the last seconds of this chain, one a line: so many, or all that are kept.
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "300", requires = "chain", conflicts_with = "flows")]
    seconds: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    if arguments.flows {
        return flows(run_dir, arguments);
    }
    if let (Some(name), Some(count)) = (&arguments.chain, arguments.seconds) {
        return seconds(run_dir, name, count, arguments.json);
    }
    let (mut chains, orphans) = if let Some(client) = Client::connect(run_dir)? {
        (client.list()?, client.info()?.orphans)
    } else {
        tell_what_is_left(run_dir);
        (Vec::new(), Vec::new())
    };
    if let Some(name) = &arguments.chain {
        chains.retain(|status| status.chain == *name);
        if chains.is_empty() {
            return Err(output::not_running(name));
        }
    }
    if arguments.json {
        return output::json(&chains);
    }
    if !orphans.is_empty() {
        println!(
            "an agent that was killed left {} things behind, which may still forward; `myelin down --all` removes them",
            orphans.len()
        );
    }
    if chains.is_empty() {
        println!("no chain runs");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", overview(&chains));
    if arguments.chain.is_some() {
        for status in &chains {
            details(status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the last seconds of a chain.
fn seconds(
    run_dir: &RunDir,
    name: &str,
    count: usize,
    is_json: bool,
) -> Result<ExitCode, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| output::not_running(name))?;
    let seconds = client.seconds(name, count)?;
    if is_json {
        return output::json(&seconds);
    }
    println!("{}", sla::seconds(&seconds));
    Ok(ExitCode::SUCCESS)
}

/// Lists the flows of each function that knows any.
fn flows(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let chain = arguments.chain.as_deref();
    let functions = match Client::connect(run_dir)? {
        Some(client) => client.flows(chain)?,
        None => match chain {
            Some(name) => return Err(output::not_running(name)),
            None => Vec::new(),
        },
    };
    if arguments.json {
        return output::json(&functions);
    }
    if functions.is_empty() {
        println!("no function keeps flows; those of kind `monitor` do, for example");
    }
    for function in &functions {
        println!(
            "{}/{} ({}, {}): {} flows, {} begun, {} put out, {} packets of no flow",
            function.chain,
            function.function,
            function.kind,
            function.space,
            function.flows.len(),
            function.begun,
            function.evicted,
            function.outside
        );
        if !function.flows.is_empty() {
            println!("{}", flow_table(&function.flows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn flow_table(flows: &[FlowStatus]) -> comfy_table::Table {
    let mut table = output::table([
        "flow",
        "state",
        ">packets",
        ">bytes",
        ">replies",
        ">their bytes",
        ">last ms ago",
    ]);
    for flow in flows {
        table.add_row([
            flow.flow.clone(),
            flow.state.map_or("-", flow_state).to_owned(),
            flow.packets.to_string(),
            flow.bytes.to_string(),
            flow.reply_packets.to_string(),
            flow.reply_bytes.to_string(),
            format!("{:.1}", flow.last_packet_ms_ago),
        ]);
    }
    table
}

/// The word for the state of a flow.
fn flow_state(state: FlowState) -> &'static str {
    match state {
        FlowState::New => "new",
        FlowState::Established => "established",
        FlowState::Closing => "closing",
        FlowState::Closed => "closed",
    }
}

/// An agent that was killed cannot tell; that it ended without cleaning up shows in the journal.
fn tell_what_is_left(run_dir: &RunDir) {
    if run_dir.is_abandoned() {
        eprintln!(
            "no agent runs at {}; the last one was killed and left things behind, which may still forward; \
             `myelin down --all` removes them",
            run_dir.path().display()
        );
    }
}

fn overview(chains: &[ChainStatus]) -> comfy_table::Table {
    let mut table = output::table([
        "chain", "state", "hook", "ports", ">in", ">policed", ">out", ">drops", ">p50 us",
        ">p99 us", "sla", "worker",
    ]);
    for status in chains {
        table.add_row([
            status.chain.clone(),
            if status.best_effort && status.state == ChainState::Active {
                "best effort".to_owned()
            } else {
                state(status.state).to_owned()
            },
            status.hook.clone(),
            format!("{} -> {}", status.ingress, status.egress),
            status.packets_in.to_string(),
            status.policed.to_string(),
            status.packets_out.to_string(),
            status.drops.to_string(),
            sojourn(status, |sojourn| sojourn.p50_us),
            sojourn(status, |sojourn| sojourn.p99_us),
            sla::verdict(status),
            workers(status),
        ]);
    }
    table
}

/// A figure of the sojourn; where black boxes cut the way, that of each section.
fn sojourn(status: &ChainStatus, figure: impl Fn(&SojournStatus) -> f64) -> String {
    let sections = status.sojourn.iter().chain(&status.sojourn_sections);
    let figures: Vec<_> = sections.map(|one| format!("{:.1}", figure(one))).collect();
    figures.join(" | ")
}

/// Processes, or `-`.
fn workers(status: &ChainStatus) -> String {
    let workers: Vec<String> = status
        .worker
        .iter()
        .chain(&status.more_workers)
        .map(|worker| match worker.restarts {
            0 => worker.pid.to_string(),
            restarts => format!("{} ({restarts} restarts)", worker.pid),
        })
        .collect();
    if workers.is_empty() {
        "-".to_owned()
    } else {
        workers.join(", ")
    }
}

fn details(status: &ChainStatus) {
    let mut table = output::table([
        ">#", "function", "kind", "space", ">in", ">bytes", ">drops", ">cost ns",
    ]);
    for hop in &status.hops {
        table.add_row([
            hop.position.to_string(),
            hop.name.clone(),
            hop.kind.clone(),
            hop.space.clone(),
            hop.counted.packets_in.to_string(),
            hop.counted
                .bytes_in
                .map_or_else(|| "-".to_owned(), |bytes| bytes.to_string()),
            hop.counted.drops.to_string(),
            hop.cost_ns
                .map_or_else(|| "-".to_owned(), |cost| format!("{cost:.0}")),
        ]);
    }
    println!("{table}");
    if let Some(told) = &status.sla {
        println!("{}", sla::table(told));
        for core in &told.lost_cores {
            println!("core {core} is lost: until it is back nothing is promised");
        }
        if let Some(event) = &told.last_event {
            println!("last violation: {}", sla::line(event));
        }
    }
    for hop in &status.hops {
        if !hop.counters.is_empty() {
            let counts = hop.counters.iter();
            let counts: Vec<_> = counts
                .map(|(name, count)| format!("{count} {name}"))
                .collect();
            println!("{}: {}", hop.name, counts.join(", "));
        }
        if let Some(black_box) = &hop.black_box {
            print_black_box(&hop.name, black_box);
        }
        if let Some(sandbox) = &hop.sandbox {
            println!("{}: {}", hop.name, described(sandbox));
        }
    }
    if let Some(shaper) = &status.shaper {
        println!("{}", shaped(shaper));
    }
    for ring in &status.rings {
        let end = |position: Option<u8>| {
            position.map_or_else(|| "the worker".to_owned(), |at| format!("function {at}"))
        };
        println!(
            "ring from {} to {}: {} of {} descriptors, {} taken so far",
            end(ring.from),
            end(ring.to),
            ring.occupancy,
            ring.capacity,
            ring.dequeued
        );
    }
    for host in &status.hosts {
        println!("{}: {} in {}", host.role, host.address, host.netns);
    }
}

/// What holds departing packets to the profile, and what that did.
fn shaped(shaper: &ShaperStatus) -> String {
    let limit = |rate: Option<u64>, burst: Option<u64>, what: &str| {
        Some(format!("{} {what}/s, burst {}", rate?, burst?))
    };
    let profile = [
        limit(shaper.rate_pps, shaper.burst_packets, "packets"),
        limit(shaper.rate_bps, shaper.burst_bits, "bits"),
    ];
    let profile: Vec<_> = profile.into_iter().flatten().collect();
    let mut parts = vec![format!(
        "shaper ({}): {}; {} wait of {} for up to {:.0} us",
        shaper.by,
        profile.join(", "),
        shaper.waiting,
        shaper.queue,
        shaper.delay_us
    )];
    if let Some(delayed) = shaper.delayed {
        let mean = shaper.mean_wait_us.unwrap_or_default();
        parts.push(format!("{delayed} delayed, {mean:.1} us in the mean"));
    }
    if !shaper.in_sojourn {
        parts.push("the wait is not in the sojourn".to_owned());
    }
    let drops = [
        (shaper.drops_full, "found the queue full"),
        (shaper.drops_late, "would have waited too long"),
        (shaper.drops_too_big, "were larger than the burst"),
        (shaper.lost, "were lost with a worker"),
    ];
    let drops = drops.iter().filter(|(count, _)| *count > 0);
    parts.extend(drops.map(|(count, why)| format!("{count} {why}")));
    parts.join("; ")
}

/// What a function stands in, its limits, and what it has used of them.
fn described(sandbox: &SandboxStatus) -> String {
    const MIB: f64 = (1 << 20) as f64;
    let mut parts = vec![match &sandbox.container {
        Some(container) => format!("container {container}"),
        None => sandbox.isolation.to_string(),
    }];
    parts.push(match sandbox.cpu_limit_cores {
        Some(cores) => format!(
            "{:.2} s of CPU time, held to {cores} cores ({} times, {:.2} s)",
            sandbox.cpu_s, sandbox.throttled_periods, sandbox.throttled_s
        ),
        None => format!("{:.2} s of CPU time", sandbox.cpu_s),
    });
    let used = sandbox.memory_bytes as f64 / MIB;
    parts.push(match sandbox.memory_limit_bytes {
        Some(limit) => format!("{used:.1} of {:.1} MiB of memory", limit as f64 / MIB),
        None => format!("{used:.1} MiB of memory"),
    });
    if sandbox.oom_kills > 0 {
        parts.push(format!(
            "killed {} times at its memory limit",
            sandbox.oom_kills
        ));
    }
    parts.join(", ")
}

fn print_black_box(name: &str, black_box: &BlackBoxStatus) {
    let process = match black_box.pid {
        Some(pid) => format!("process {pid}"),
        None => "no process".to_owned(),
    };
    println!(
        "{name}: {process}, {} restarts, {} packets out, {} back to the senders; it writes to {}",
        black_box.restarts, black_box.packets_out, black_box.packets_back, black_box.log
    );
    if let Some(last_end) = &black_box.last_end {
        println!("{name}: its program last {last_end}");
    }
}

/// The word for a state.
fn state(state: ChainState) -> &'static str {
    match state {
        ChainState::Active => "active",
        ChainState::Failed => "failed",
    }
}
