//! Running chains, in words and tables.

mod cores;
mod flows;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use myelin_api::{
    BlackBoxStatus, ChainState, ChainStatus, HopStatus, PacketAccount, PartStatus, SandboxStatus,
    ShaperStatus, SlaSojourn, SlaStatus, SlaWindow, SojournStatus,
};

use crate::sla;
use crate::terminal::{Column, add_field, digits_or_dash, format_us, listing, or_dash, wrap};

pub use cores::cores;
pub use flows::flows;

/// Formats all chains, one a line: the contract, and the packets by place.
pub fn overview(chains: &[ChainStatus], width: u16) -> String {
    let columns: [Column<ChainStatus>; 10] = [
        ("chain", |status| status.chain.clone()),
        ("contract", format_contract),
        (">in", |status| status.account.packets_in.to_string()),
        (">out", |status| status.account.packets_out.to_string()),
        (">policed", |status| status.account.policed.to_string()),
        (">dropped", |status| {
            sum(&status.account.dropped).to_string()
        }),
        (">lost", |status| sum(&status.account.lost).to_string()),
        (">in flight", |status| status.account.under_way.to_string()),
        (">us (owed)", |status| match &status.sla {
            Some(sla) => {
                let owed = or_dash(sla.contract.latency_us.map(format_us));
                format!("{} ({owed})", agreed_us(status, sla))
            }
            None => "-".to_owned(),
        }),
        ("where", |status| {
            let PacketAccount { dropped, lost, .. } = &status.account;
            format_places(dropped.iter().chain(lost))
        }),
    ];
    let mut out = listing(&columns, chains, width);
    for status in chains {
        for fault in &status.port_faults {
            let line = format!("{}: {fault}", status.chain);
            let _ = write!(out, "\n{}", wrap(&line, 2, width));
        }
    }
    out
}

/// Says whether a chain keeps its contract, or why the chain has no contract.
fn format_contract(status: &ChainStatus) -> String {
    match status.state {
        ChainState::Failed => "failed".to_owned(),
        ChainState::Waiting => "waiting".to_owned(),
        ChainState::Active if status.best_effort => "best effort".to_owned(),
        ChainState::Active if status.sla.is_none() => "not judged yet".to_owned(),
        ChainState::Active => sla::verdict(status),
    }
}

/// Formats the sojourn at the agreed percentile since the chain came up, us; with black boxes, the
/// sojourn of each section.
fn agreed_us(status: &ChainStatus, sla: &SlaStatus) -> String {
    match &sla.life.sojourn {
        Some(sojourn) => format_us(sojourn.agreed_us),
        None if status.sojourn_sections.is_empty() => "-".to_owned(),
        None => format_sojourn(status, |section| section.p99_us),
    }
}

/// Formats a figure of the sojourn; with black boxes, the figure of each section.
fn format_sojourn(status: &ChainStatus, figure: impl Fn(&SojournStatus) -> f64) -> String {
    let sections = status.sojourn.iter().chain(&status.sojourn_sections);
    let figures: Vec<_> = sections
        .map(|section| format!("{:.1}", figure(section)))
        .collect();
    figures.join(" | ")
}

fn sum(places: &BTreeMap<String, u64>) -> u64 {
    places.values().sum()
}

/// Formats packets by place: `3 ring, 2 edge-filter`; `-` for no place.
fn format_places<'a>(places: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let places: Vec<_> = places
        .map(|(place, packets)| format!("{packets} {place}"))
        .collect();
    or_dash((!places.is_empty()).then(|| places.join(", ")))
}

/// Formats the account of all packets as an equation.
pub(crate) fn format_account(account: &PacketAccount) -> String {
    let PacketAccount { dropped, lost, .. } = account;
    let made = match account.made {
        0 => String::new(),
        made => format!(" + {made} made by functions"),
    };
    let mut text = format!(
        "{} in{made} = {} out + {} policed",
        account.packets_in, account.packets_out, account.policed
    );
    for (kind, by_place) in [("dropped", dropped), ("lost", lost)] {
        let _ = write!(text, " + {} {kind}", sum(by_place));
        if !by_place.is_empty() {
            let _ = write!(text, " ({})", format_places(by_place.iter()));
        }
    }
    text + &format!(" + {} in flight", account.under_way)
}

/// Formats a chain's contract and measured figures, its packets by place, and its failures.
pub fn summary(status: &ChainStatus, width: u16) -> String {
    let mut out = format!("chain {}: {}\n", status.chain, format_contract(status));
    if let Some(judged) = &status.sla {
        add_field(
            &mut out,
            "owed",
            &sla::format_terms(&judged.contract),
            width,
        );
        let sojourn = judged.life.sojourn.as_ref();
        let us = |figure: fn(&SlaSojourn) -> f64| or_dash(sojourn.map(figure).map(format_us));
        // The contract's percentile applies to the undivided sojourn only.
        let percentile = match sojourn {
            Some(_) => judged.contract.percentile.to_string(),
            None => "by section: 99".to_owned(),
        };
        let measured = format!(
            "{percentile} % within {} us, longest {} us; loss {} %",
            agreed_us(status, judged),
            us(|sojourn| sojourn.max_us),
            digits_or_dash(3, judged.life.loss_percent)
        );
        add_field(&mut out, "measured", &measured, width);
    }
    if let Some(ns) = status.bound_ns {
        add_field(
            &mut out,
            "worst case",
            &format!("{} us", format_us(ns as f64 / 1e3)),
            width,
        );
    }
    add_field(&mut out, "packets", &format_account(&status.account), width);
    if status.dropped_fragments > 0 {
        let text = format!(
            "{} dropped at the ingress, for all its chains",
            status.dropped_fragments
        );
        add_field(&mut out, "fragments", &text, width);
    }
    if status.missed > 0 {
        let text = format!(
            "{} came faster than the front door takes packets, and never entered",
            status.missed
        );
        add_field(&mut out, "missed", &text, width);
    }
    if let Some(part) = &status.part {
        add_part(&mut out, part, width);
    }
    for fault in &status.port_faults {
        add_field(&mut out, "interface", fault, width);
    }
    let judged = status.sla.iter();
    for core in judged.flat_map(|judged| &judged.lost_cores) {
        let text = format!("core {core} is unavailable: no promise until the core is back");
        add_field(&mut out, "core", &text, width);
    }
    if let Some(event) = status
        .sla
        .as_ref()
        .and_then(|judged| judged.last_event.as_ref())
    {
        add_field(
            &mut out,
            "violation",
            &sla::describe_with_evidence(event),
            width,
        );
    }
    for hop in &status.hops {
        let kills = hop.sandbox.as_ref().map_or(0, |sandbox| sandbox.oom_kills);
        if kills > 0 {
            let text = format!("{}: killed {kills} times at its memory limit", hop.name);
            add_field(&mut out, "function", &text, width);
        }
    }
    out + &hops_table(status, width)
}

/// Adds the packets to the next node, and the dropped frames with NSH.
fn add_part(out: &mut String, part: &PartStatus, width: u16) {
    let counts = [
        (
            part.received.unwrap_or_default(),
            "received from the previous node",
        ),
        (
            part.stamped,
            "of them with their time since the whole chain's ingress",
        ),
        (part.sent.unwrap_or_default(), "sent to the next node"),
        (part.too_long, "too long for it"),
        (part.unresolved, "lost because its address is unknown"),
        (part.malformed, "malformed frames dropped"),
        (part.unknown, "frames of unknown paths dropped"),
        (part.foreign, "frames not from the neighbour dropped"),
        (
            part.expired,
            "frames dropped at the end of their time to live",
        ),
    ];
    let counted = counts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<_> = counted
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !texts.is_empty() {
        add_field(out, "wire", &texts.join(", "), width);
    }
}

/// Formats the processes of the workers, or `-`.
fn format_workers(status: &ChainStatus) -> String {
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

/// Formats the details of a chain: the contract by time, ports, processes, counters, shaper, rings.
pub fn details(status: &ChainStatus, width: u16) -> String {
    let mut out = String::new();
    if let Some(judged) = &status.sla {
        let _ = writeln!(out, "{}", sla::table(judged, width));
    }
    let ports = format!(
        "{} -> {}, hook {}",
        status.ingress, status.egress, status.hook
    );
    add_field(&mut out, "ports", &ports, width);
    let mapping = format!("{}, generation {}", status.mapping, status.generation);
    add_field(&mut out, "mapping", &mapping, width);
    add_field(&mut out, "workers", &format_workers(status), width);
    let p50_us = format_sojourn(status, |sojourn| sojourn.p50_us);
    let p99_us = format_sojourn(status, |sojourn| sojourn.p99_us);
    add_field(
        &mut out,
        "sojourn",
        &format!("50 % within {p50_us} us, 99 % within {p99_us} us"),
        width,
    );
    let mut lines = String::new();
    for hop in &status.hops {
        lines.push_str(&hop_details(hop));
    }
    if let Some(shaper) = &status.shaper {
        let _ = writeln!(lines, "{}", describe_shaper(shaper));
    }
    for ring in &status.rings {
        let end = |position: Option<u8>| {
            position.map_or_else(|| "the worker".to_owned(), |at| format!("function {at}"))
        };
        let _ = writeln!(
            lines,
            "ring from {} to {}: {} of {} descriptors, {} taken so far",
            end(ring.from),
            end(ring.to),
            ring.occupancy,
            ring.capacity,
            ring.dequeued
        );
    }
    for host in &status.hosts {
        let _ = writeln!(lines, "{}: {} in {}", host.role, host.address, host.netns);
    }
    for line in lines.lines() {
        let _ = writeln!(out, "{}", wrap(line, 2, width));
    }
    out
}

fn hops_table(status: &ChainStatus, width: u16) -> String {
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
            "{name}: {process}, {restarts} restarts, {packets_out} packets out, {packets_back} back to the senders; output in {log}"
        );
        if let Some(last_end) = &black_box.last_end {
            let _ = writeln!(out, "{name}: the program last {last_end}");
        }
    }
    if let Some(sandbox) = &hop.sandbox {
        let _ = writeln!(out, "{name}: {}", describe_sandbox(sandbox));
    }
    out
}

/// Describes the shaper's profile and counters.
fn describe_shaper(shaper: &ShaperStatus) -> String {
    let limit = |rate: Option<u64>, burst: Option<u64>, unit: &str| {
        Some(format!("{} {unit}/s, burst {}", rate?, burst?))
    };
    let profile = [
        limit(shaper.rate_pps, shaper.burst_packets, "packets"),
        limit(shaper.rate_bps, shaper.burst_bits, "bits"),
    ];
    let profile: Vec<_> = profile.into_iter().flatten().collect();
    let mut parts = vec![format!(
        "shaper ({}): {}; {} packets wait, at most {} for {:.0} us",
        shaper.by,
        profile.join(", "),
        shaper.waiting,
        shaper.queue,
        shaper.delay_us
    )];
    if let Some(delayed) = shaper.delayed {
        let mean = shaper.mean_wait_us.unwrap_or_default();
        parts.push(format!("{delayed} delayed, mean wait {mean:.1} us"));
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

/// Describes the process or container of a function, its limits and its use.
fn describe_sandbox(sandbox: &SandboxStatus) -> String {
    const MIB: f64 = (1 << 20) as f64;
    let mut parts = vec![match &sandbox.container {
        Some(container) => format!("container {container}"),
        None => sandbox.isolation.to_string(),
    }];
    parts.push(match sandbox.cpu_limit_cores {
        Some(cores) => format!(
            "{:.2} s of CPU time, limited to {cores} cores (paused {} times, {:.2} s)",
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

/// Formats the last second of each chain, one chain a line.
pub fn last_second(chains: &[ChainStatus], width: u16) -> String {
    if chains.is_empty() {
        return "no chain runs".to_owned();
    }
    let columns: [Column<ChainStatus>; 9] = [
        ("CHAIN", |status| status.chain.clone()),
        ("CONTRACT", format_contract),
        (">IN/s", |status| {
            per_second(status, |second| second.packets_in)
        }),
        (">OUT/s", |status| {
            per_second(status, |second| second.packets_out)
        }),
        (">POLICED/s", |status| {
            per_second(status, |second| second.policed)
        }),
        (">LOST/s", |status| {
            let lost = per_second(status, |second| second.lost.total());
            let places = sla_figure(status, |sla| Some(sla::format_places(&sla.second.lost)));
            match places.as_str() {
                "-" | "0" | "" => lost,
                places => format!("{lost} ({places})"),
            }
        }),
        (">QUEUED", |status| status.account.under_way.to_string()),
        (">us (OWED)", |status| {
            let owed = sla_figure(status, |sla| Some(format_us(sla.contract.latency_us?)));
            let us = last_sojourn(status, |sojourn| sojourn.agreed_us);
            format!("{us} ({owed})")
        }),
        ("LAST EVENT", |status| {
            sla_figure(status, |sla| {
                sla.last_event.as_ref().map(sla::describe_briefly)
            })
        }),
    ];
    listing(&columns, chains, width)
}

/// Formats details of the last second of each chain.
pub fn last_second_details(chains: &[ChainStatus], width: u16) -> String {
    let columns: [Column<ChainStatus>; 9] = [
        ("CHAIN", |status| status.chain.clone()),
        ("MAPPING", |status| status.mapping.clone()),
        (">IN bit/s", |status| {
            sla_figure(status, |sla| Some(sla::format_short(sla.second.in_bps)))
        }),
        (">OUT bit/s", |status| {
            sla_figure(status, |sla| Some(sla::format_short(sla.second.out_bps?)))
        }),
        (">LOSS %", |status| {
            sla_figure(status, |sla| {
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
        (">CPU %", |status| {
            sla_figure(status, |sla| {
                Some(format!("{:.0}", sla.second.worker_cores? * 100.0))
            })
        }),
    ];
    listing(&columns, chains, width)
}

/// Formats the packets of the last second as a rate, or `-`.
fn per_second(status: &ChainStatus, count: fn(&SlaWindow) -> u64) -> String {
    let second = status.sla.as_ref().map(|sla| &sla.second);
    let second = second.filter(|second| second.seconds > 0.0);
    or_dash(second.map(|second| sla::format_short(count(second) as f64 / second.seconds)))
}

/// Formats a figure of a chain's contract, or `-`.
fn sla_figure(status: &ChainStatus, figure: fn(&SlaStatus) -> Option<String>) -> String {
    or_dash(status.sla.as_deref().and_then(figure))
}

/// Formats a figure of the last second's sojourn, or `-`.
fn last_sojourn(status: &ChainStatus, figure: fn(&SlaSojourn) -> f64) -> String {
    let second = status.sla.as_deref().map(|sla| &sla.second);
    let sojourn = second.and_then(|second| second.sojourn.as_ref());
    digits_or_dash(1, sojourn.map(figure))
}
