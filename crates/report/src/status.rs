//! Running chains, in words and tables.

use std::fmt::Write as _;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use myelin_api::{
    BlackBoxStatus, ChainState, ChainStatus, FlowState, FlowStatus, FunctionFlows, HopStatus,
    SandboxStatus, ShaperStatus, SlaSojourn, SlaStatus, SojournStatus,
};

use crate::sla;
use crate::terminal::{Column, digits_or_dash, listing, or_dash};

/// All chains, one a line.
pub fn overview(chains: &[ChainStatus], width: Option<u16>) -> Table {
    let columns: [Column<ChainStatus>; 12] = [
        ("chain", |status| status.chain.clone()),
        ("state", |status| match status.state {
            ChainState::Active if status.best_effort => "best effort".to_owned(),
            one => state(one).to_owned(),
        }),
        ("hook", |status| status.hook.clone()),
        ("ports", |status| {
            format!("{} -> {}", status.ingress, status.egress)
        }),
        (">in", |status| status.packets_in.to_string()),
        (">policed", |status| status.policed.to_string()),
        (">out", |status| status.packets_out.to_string()),
        (">drops", |status| status.drops.to_string()),
        (">p50 us", |status| {
            sojourn(status, |sojourn| sojourn.p50_us)
        }),
        (">p99 us", |status| {
            sojourn(status, |sojourn| sojourn.p99_us)
        }),
        ("sla", sla::verdict),
        ("worker", workers),
    ];
    listing(&columns, chains, width)
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
    or_dash((!workers.is_empty()).then(|| workers.join(", ")))
}

/// Each function of a chain, its contract, and all that belongs to it.
pub fn details(status: &ChainStatus, width: Option<u16>) -> String {
    let mut out = hops(status, width);
    // Writing into a String cannot fail.
    if let Some(told) = &status.sla {
        let _ = writeln!(out, "{}", sla::table(told, width));
        for core in &told.lost_cores {
            let _ = writeln!(
                out,
                "core {core} is lost: until it is back nothing is promised"
            );
        }
        if let Some(event) = &told.last_event {
            let _ = writeln!(out, "last violation: {}", sla::line(event));
        }
    }
    for hop in &status.hops {
        out.push_str(&hop_details(hop));
    }
    if let Some(shaper) = &status.shaper {
        let _ = writeln!(out, "{}", shaped(shaper));
    }
    for ring in &status.rings {
        let end = |position: Option<u8>| {
            position.map_or_else(|| "the worker".to_owned(), |at| format!("function {at}"))
        };
        let _ = writeln!(
            out,
            "ring from {} to {}: {} of {} descriptors, {} taken so far",
            end(ring.from),
            end(ring.to),
            ring.occupancy,
            ring.capacity,
            ring.dequeued
        );
    }
    for host in &status.hosts {
        let _ = writeln!(out, "{}: {} in {}", host.role, host.address, host.netns);
    }
    out
}

fn hops(status: &ChainStatus, width: Option<u16>) -> String {
    let columns: [Column<HopStatus>; 8] = [
        (">#", |hop| hop.position.to_string()),
        ("function", |hop| hop.name.clone()),
        ("kind", |hop| hop.kind.clone()),
        ("space", |hop| hop.space.clone()),
        (">in", |hop| hop.counted.packets_in.to_string()),
        (">bytes", |hop| or_dash(hop.counted.bytes_in)),
        (">drops", |hop| hop.counted.drops.to_string()),
        (">cost ns", |hop| digits_or_dash(0, hop.cost_ns)),
    ];
    format!("{}\n", listing(&columns, &status.hops, width))
}

fn hop_details(hop: &HopStatus) -> String {
    let mut out = String::new();
    let name = &hop.name;
    if !hop.counters.is_empty() {
        let counts = hop.counters.iter();
        let counts: Vec<_> = counts
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let _ = writeln!(out, "{name}: {}", counts.join(", "));
    }
    if let Some(black_box) = &hop.black_box {
        let process = match black_box.pid {
            Some(pid) => format!("process {pid}"),
            None => "no process".to_owned(),
        };
        let BlackBoxStatus {
            restarts,
            packets_out,
            packets_back,
            log,
            ..
        } = black_box;
        let _ = writeln!(
            out,
            "{name}: {process}, {restarts} restarts, {packets_out} packets out, {packets_back} back to the senders; it writes to {log}"
        );
        if let Some(last_end) = &black_box.last_end {
            let _ = writeln!(out, "{name}: its program last {last_end}");
        }
    }
    if let Some(sandbox) = &hop.sandbox {
        let _ = writeln!(out, "{name}: {}", described(sandbox));
    }
    out
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

/// The word for a state.
fn state(state: ChainState) -> &'static str {
    match state {
        ChainState::Active => "active",
        ChainState::Failed => "failed",
    }
}

/// The flows of each function that knows any.
pub fn flows(functions: &[FunctionFlows], width: Option<u16>) -> String {
    let mut out = String::new();
    for function in functions {
        let _ = writeln!(
            out,
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
            let _ = writeln!(out, "{}", flow_table(&function.flows, width));
        }
    }
    out
}

fn flow_table(flows: &[FlowStatus], width: Option<u16>) -> Table {
    let columns: [Column<FlowStatus>; 7] = [
        ("flow", |flow| flow.flow.clone()),
        ("state", |flow| or_dash(flow.state.map(flow_state))),
        (">packets", |flow| flow.packets.to_string()),
        (">bytes", |flow| flow.bytes.to_string()),
        (">replies", |flow| flow.reply_packets.to_string()),
        (">their bytes", |flow| flow.reply_bytes.to_string()),
        (">last ms ago", |flow| {
            format!("{:.1}", flow.last_packet_ms_ago)
        }),
    ];
    listing(&columns, flows, width)
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

/// All chains over the last second, one a line, without lines around the cells.
pub fn live(chains: &[ChainStatus]) -> String {
    if chains.is_empty() {
        return "no chain runs".to_owned();
    }
    let columns: [Column<ChainStatus>; 14] = [
        ("CHAIN", |status| status.chain.clone()),
        ("STATE", |status| state(status.state).to_owned()),
        ("MAPPING", |status| status.mapping.clone()),
        (">IN pps", |status| {
            of(status, |sla| Some(sla::short(sla.second.in_pps)))
        }),
        (">IN bit/s", |status| {
            of(status, |sla| Some(sla::short(sla.second.in_bps)))
        }),
        (">OUT pps", |status| {
            of(status, |sla| Some(sla::short(sla.second.out_pps)))
        }),
        (">POLICED/s", |status| {
            of(status, |sla| {
                let seconds = sla.second.seconds;
                (seconds > 0.0).then(|| sla::short(sla.second.policed as f64 / seconds))
            })
        }),
        (">LOSS %", |status| {
            of(status, |sla| {
                Some(format!("{:.3}", sla.second.loss_percent?))
            })
        }),
        (">p50 us", |status| {
            last_sojourn(status, |sojourn| sojourn.p50_us)
        }),
        (">p99 us", |status| {
            last_sojourn(status, |sojourn| sojourn.p99_us)
        }),
        (">max us", |status| {
            last_sojourn(status, |sojourn| sojourn.max_us)
        }),
        ("SLA", sla::verdict),
        (">CPU %", |status| {
            of(status, |sla| {
                Some(format!("{:.0}", sla.second.worker_cores? * 100.0))
            })
        }),
        ("LAST EVENT", |status| {
            of(status, |sla| sla.last_event.as_ref().map(sla::brief))
        }),
    ];
    let mut table = listing(&columns, chains, None);
    table.load_style(NOTHING);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.to_string()
}

/// A figure of what is known of a chain's contract, or `-`.
fn of(status: &ChainStatus, figure: fn(&SlaStatus) -> Option<String>) -> String {
    or_dash(status.sla.as_deref().and_then(figure))
}

/// A figure of the last second's sojourn, or `-`.
fn last_sojourn(status: &ChainStatus, figure: fn(&SlaSojourn) -> f64) -> String {
    let second = status.sla.as_deref().map(|sla| &sla.second);
    let sojourn = second.and_then(|second| second.sojourn.as_ref());
    digits_or_dash(1, sojourn.map(figure))
}
